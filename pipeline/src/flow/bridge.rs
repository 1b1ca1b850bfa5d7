//! The one place where tokio (waiting) and rayon (computing) meet.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use rayon::ThreadPool;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// Computes on the pool while the async task waits.
///
/// # Errors
/// [`Error::Internal`] when `compute` panics.
pub(crate) async fn on_pool<T: Send + 'static>(
    pool: Arc<ThreadPool>,
    stage: &'static str,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = oneshot::channel();
    pool.spawn(move || {
        // The receiver is gone only when the run was cancelled.
        let _ = done.send(catch_unwind(AssertUnwindSafe(compute)));
    });
    match result.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => Err(internal(stage, panic.as_ref())),
        Err(_) => Err(Error::Interrupted),
    }
}

/// A panic as an error.
pub(crate) fn internal(stage: &'static str, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
    Error::Internal { stage, message: text.to_owned() }
}

/// An async stage: maps what comes through `input` on the pool, several at once, and sends the results
/// in the order of the inputs.
///
/// Ends when `input` ends, when nobody receives any more, or when the run is cancelled.
///
/// # Errors
/// The first error of `compute`; [`Error::Interrupted`] when cancelled.
pub(crate) async fn ordered_map<In, Out>(
    pool: Arc<ThreadPool>,
    stage: &'static str,
    mut input: Receiver<In>,
    output: Sender<Out>,
    cancel: CancellationToken,
    compute: impl Fn(In) -> Result<Out, Error> + Send + Sync + 'static,
) -> Result<(), Error>
where
    In: Send + 'static,
    Out: Send + 'static,
{
    let compute = Arc::new(compute);
    let at_once = pool.current_num_threads() + 1;
    let mut in_flight = FuturesOrdered::new();
    let mut open = true;
    while open || !in_flight.is_empty() {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::Interrupted),
            Some(done) = in_flight.next(), if !in_flight.is_empty() => {
                let done: Result<Result<Out, Error>, Error> = done;
                let send = output.send(done??);
                tokio::select! {
                    () = cancel.cancelled() => return Err(Error::Interrupted),
                    sent = send => if sent.is_err() { return Ok(()) },
                }
            }
            item = input.recv(), if open && in_flight.len() < at_once => match item {
                Some(item) => {
                    let compute = Arc::clone(&compute);
                    in_flight.push_back(on_pool(Arc::clone(&pool), stage, move || compute(item)));
                }
                None => open = false,
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn pool() -> Arc<ThreadPool> {
        Arc::new(rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap())
    }

    #[tokio::test]
    async fn results_keep_the_order_of_the_inputs() {
        let (send, input) = mpsc::channel(2);
        let (output, mut results) = mpsc::channel(2);
        let slow_then_fast = |n: u64| {
            std::thread::sleep(std::time::Duration::from_millis(20 - n % 20));
            Ok(n * 2)
        };
        let stage = tokio::spawn(ordered_map(
            pool(),
            "test",
            input,
            output,
            CancellationToken::new(),
            slow_then_fast,
        ));
        tokio::spawn(async move {
            for n in 0..40 {
                send.send(n).await.unwrap();
            }
        });
        let mut got = Vec::new();
        while let Some(result) = results.recv().await {
            got.push(result);
        }
        assert_eq!(got, (0..40).map(|n| n * 2).collect::<Vec<u64>>());
        stage.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_the_sender_does_not_hang() {
        let (send, input) = mpsc::channel(1);
        let (output, mut results) = mpsc::channel::<u64>(1);
        let explode = |n: u64| if n == 3 { panic!("three") } else { Ok(n) };
        let stage =
            tokio::spawn(ordered_map(pool(), "test", input, output, CancellationToken::new(), explode));
        let sender = tokio::spawn(async move {
            for n in 0..1000 {
                if send.send(n).await.is_err() {
                    return true;
                }
            }
            false
        });
        while results.recv().await.is_some() {}
        let error = stage.await.unwrap().unwrap_err();
        assert!(
            matches!(&error, Error::Internal { stage: "test", message } if message == "three"),
            "{error}"
        );
        assert!(sender.await.unwrap(), "the sender must see that the stage is gone");
    }

    #[tokio::test]
    async fn cancelling_ends_a_stage_that_waits_for_its_receiver() {
        let (send, input) = mpsc::channel(8);
        let (output, _kept_but_never_read) = mpsc::channel::<u64>(1);
        let cancel = CancellationToken::new();
        let stage = tokio::spawn(ordered_map(pool(), "test", input, output, cancel.clone(), Ok));
        for n in 0..6 {
            send.send(n).await.unwrap();
        }
        cancel.cancel();
        assert!(matches!(stage.await.unwrap(), Err(Error::Interrupted)));
    }
}
