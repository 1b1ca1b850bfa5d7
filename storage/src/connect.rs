//! Makes the client of a bucket.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use crate::error::StorageError;
use crate::location::Location;
use crate::stores::StoreOptions;
use crate::traffic::CountingConnector;

/// A bucket.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// For what only S3 has, with a client to send signed requests by.
    pub(crate) s3: Option<(Arc<AmazonS3>, HttpClient)>,
}

impl Bucket {
    /// Credentials and endpoints come from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), from instance or
    /// workload identities, and for S3 from `~/.aws` as well.
    pub(crate) fn connect(
        location: &Location,
        options: &StoreOptions,
        connector: CountingConnector,
    ) -> Result<Self, StorageError> {
        let failed = |source| StorageError::Connect { url: location.root.clone(), source: Box::new(source) };
        let client = ClientOptions::new()
            .with_allow_http(location.scheme == "http")
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(options.timeout.min(LONGEST_RETRY / 2))
            .with_timeout_disabled();
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() },
            max_retries: options.retries,
            retry_timeout: LONGEST_RETRY,
        };
        let (url, plain) = (&location.root, |store| Self { store, s3: None });
        match location.scheme.as_str() {
            "s3" | "s3a" => {
                let builder = crate::credentials::with_profile(AmazonS3Builder::from_env().with_url(url));
                let http = builder
                    .get_config_value(&AmazonS3ConfigKey::Endpoint)
                    .is_some_and(|endpoint| endpoint.starts_with("http://"));
                let client = client.with_allow_http(http);
                let signed = connector.connect(&client).map_err(failed)?;
                let builder =
                    builder.with_client_options(client).with_retry(retry).with_http_connector(connector);
                let store = Arc::new(builder.build().map_err(failed)?);
                Ok(Self { store: Arc::clone(&store) as _, s3: Some((store, signed)) })
            }
            "gs" => GoogleCloudStorageBuilder::from_env()
                .with_url(url)
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(connector)
                .build()
                .map(|store| plain(Arc::new(store)))
                .map_err(failed),
            "http" | "https" => HttpBuilder::new()
                .with_url(url)
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(connector)
                .build()
                .map(|store| plain(Arc::new(store)))
                .map_err(failed),
            _ => {
                let http = std::env::var("AZURE_ALLOW_HTTP").is_ok_and(|value| value == "true");
                MicrosoftAzureBuilder::from_env()
                    .with_url(url)
                    .with_client_options(client.with_allow_http(http))
                    .with_retry(retry)
                    .with_http_connector(connector)
                    .build()
                    .map(|store| plain(Arc::new(store)))
                    .map_err(failed)
            }
        }
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// A request is signed once for all its repetitions, and a signature lasts for some minutes.
const LONGEST_RETRY: Duration = Duration::from_secs(240);
