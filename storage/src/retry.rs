//! Asks again where the client itself does not: the answer to a write that broke off, a list that did.

use std::time::{Duration, Instant};

use crate::error::StorageError;

/// How often, and for how long: the client has repeated most requests already.
const TRIES: u32 = 5;
const LONGEST: Duration = Duration::from_secs(240);
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Asks until there is an answer, or a reason not to ask again.
pub(crate) async fn again<T, F>(ask: impl Fn() -> F) -> object_store::Result<T>
where
    F: Future<Output = object_store::Result<T>>,
{
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut tries = 1;
    loop {
        match ask().await {
            Err(error)
                if tries < TRIES && started.elapsed() < LONGEST && StorageError::is_temporary(&error) =>
            {
                tracing::debug!("{error}; asking again");
                tokio::time::sleep(pause).await;
                pause *= 3;
                tries += 1;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn broken() -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: "error reading a body from connection".into() }
    }

    #[tokio::test]
    async fn what_broke_off_is_asked_again_and_what_is_final_is_not() {
        let asked = AtomicU32::new(0);
        let third =
            again(|| async { if asked.fetch_add(1, Ordering::Relaxed) < 2 { Err(broken()) } else { Ok(7) } });
        assert_eq!(third.await.unwrap(), 7);
        assert_eq!(asked.swap(0, Ordering::Relaxed), 3);
        let count = |error: fn() -> object_store::Error| {
            let asked = &asked;
            again(move || async move {
                asked.fetch_add(1, Ordering::Relaxed);
                Err::<(), _>(error())
            })
        };
        count(broken).await.unwrap_err();
        assert_eq!(asked.swap(0, Ordering::Relaxed), TRIES);
        count(|| object_store::Error::NotFound { path: "a".into(), source: "no".into() }).await.unwrap_err();
        let refused =
            || object_store::Error::Generic { store: "S3", source: "status code: 403 Forbidden".into() };
        count(refused).await.unwrap_err();
        assert_eq!(asked.swap(0, Ordering::Relaxed), 2);
    }
}
