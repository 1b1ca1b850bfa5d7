//! Counts and bounds the requests of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

/// What went over the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Requests, repeated ones included.
    pub requests: u64,
    /// Of these, how many the store answered with 5xx or 429.
    pub refused: u64,
    /// Of these, how many had no answer: no connection, reset, time-out.
    pub failed: u64,
    /// Bytes that were sent as objects.
    pub bytes_sent: u64,
    /// Bytes of objects that were received.
    pub bytes_received: u64,
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            refused: self.refused + other.refused,
            failed: self.failed + other.failed,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

impl Counters {
    pub(crate) fn sent(&self, bytes: u64) {
        self.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.bytes_received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What was counted since this was last called.
    pub(crate) fn take(&self) -> Traffic {
        let get = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Traffic {
            requests: get(&self.requests),
            refused: get(&self.refused),
            failed: get(&self.failed),
            bytes_sent: get(&self.bytes_sent),
            bytes_received: get(&self.bytes_received),
        }
    }
}

/// Connects like `reqwest`, and counts.
#[derive(Debug, Clone)]
pub(crate) struct CountingConnector {
    pub(crate) counters: Arc<Counters>,
    pub(crate) permits: Arc<Semaphore>,
}

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(CountingService { inner, shared: self.clone() }))
    }
}

#[derive(Debug)]
struct CountingService {
    inner: HttpClient,
    shared: CountingConnector,
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let CountingConnector { counters, permits } = &self.shared;
        // Never closed.
        let _permit = permits.acquire().await;
        counters.requests.fetch_add(1, Ordering::Relaxed);
        let answer = self.inner.execute(request).await;
        match &answer {
            Ok(answer) if answer.status().is_server_error() || answer.status().as_u16() == 429 => {
                counters.refused.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(_) => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
    }
}
