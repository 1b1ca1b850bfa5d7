//! The stores of a run.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use object_store::ObjectStore;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::connect::Bucket;
use crate::error::StorageError;
use crate::location::Location;
use crate::object::Object;
use crate::traffic::{Counters, CountingConnector, Traffic};

/// How stores are spoken to.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Requests in flight at most, to all stores together.
    pub concurrency: usize,
    /// How often a request is repeated that failed and may succeed.
    pub retries: usize,
    /// Longest time without a byte before a request is repeated; 120 seconds at most.
    pub timeout: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { concurrency: 64, retries: 10, timeout: Duration::from_secs(30) }
    }
}

/// Opens objects; one for a run, shared.
#[derive(Debug)]
pub struct Stores {
    options: StoreOptions,
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
    buckets: Mutex<HashMap<String, Bucket>>,
    pub(crate) counters: Arc<Counters>,
    permits: Arc<Semaphore>,
}

/// A call that takes longer says so, and goes on.
const SLOW: Duration = Duration::from_secs(60);

impl Stores {
    /// No connection is made yet.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn new(options: StoreOptions) -> std::io::Result<Arc<Self>> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("packd-store").enable_all().build()?;
        Ok(Arc::new(Self {
            permits: Arc::new(Semaphore::new(options.concurrency.max(1))),
            options,
            runtime: Some(runtime),
            buckets: Mutex::default(),
            counters: Arc::default(),
        }))
    }

    /// Uses `store` for the URLs that start with `root` (`s3://bucket`), instead of connecting there.
    pub fn insert(&self, root: &str, store: Arc<dyn ObjectStore>) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.insert(root.to_owned(), Bucket { store, s3: None });
    }

    /// The object, or prefix, that a URL names.
    ///
    /// # Errors
    /// A URL that cannot be read, or a store that is not configured.
    pub fn object(self: &Arc<Self>, url: &str) -> Result<Object, StorageError> {
        let location = Location::parse(url)?;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = match buckets.get(&location.root) {
            Some(bucket) => bucket.clone(),
            None => {
                // Nobody else may have chosen how to encrypt; if somebody has, that is fine too.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let connector = CountingConnector {
                    counters: Arc::clone(&self.counters),
                    permits: Arc::clone(&self.permits),
                };
                let bucket = Bucket::connect(&location, &self.options, connector)?;
                buckets.insert(location.root.clone(), bucket.clone());
                bucket
            }
        };
        drop(buckets);
        Ok(Object::new(Arc::clone(self), bucket, url.trim_end_matches('/').to_owned(), location.key))
    }

    /// What went over the network since this was last called.
    pub fn take_traffic(&self) -> Traffic {
        self.counters.take()
    }

    /// Requests that may be in flight.
    pub fn concurrency(&self) -> usize {
        self.options.concurrency.max(1)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        match &self.runtime {
            Some(runtime) => runtime,
            None => unreachable!("taken only when it is dropped"),
        }
    }

    /// Runs a future to its end, wherever this is called from. `what` is named when it takes long.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        what: &str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (done, result) = mpsc::sync_channel(1);
        self.runtime().spawn(async move {
            // Nobody is left to be told only when the process ends.
            let _ = done.send(future.await);
        });
        loop {
            match result.recv_timeout(SLOW) {
                Ok(value) => return value,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    tracing::warn!("{what}: still waiting for the store after {} s", SLOW.as_secs());
                }
                // The task panicked, and so does who waited for it.
                Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: the request was lost"),
            }
        }
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for its threads is not allowed everywhere; nobody waits for a request any more.
            runtime.shutdown_background();
        }
    }
}
