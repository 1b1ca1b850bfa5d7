//! What can go wrong with a store.

use std::io::ErrorKind;

/// A store that did not do what was asked, after all retries.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A URL that names no object.
    #[error("{url}: {detail}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        detail: String,
    },
    /// No client can be made for the store.
    #[error("{url}: cannot connect: {source}")]
    Connect {
        /// The store.
        url: String,
        /// What is wrong with its configuration.
        source: Box<object_store::Error>,
    },
    /// There is no such object.
    #[error("{url}: no such object")]
    Missing {
        /// The object.
        url: String,
    },
    /// The store refuses the request.
    #[error("{url}: the store refuses access: {source}")]
    Denied {
        /// The object.
        url: String,
        /// What the store said.
        source: Box<object_store::Error>,
    },
    /// The store cannot do what is asked, or does not take the request: asking again does not help.
    #[error("{url}: {source}")]
    Refused {
        /// The object.
        url: String,
        /// What the store said.
        source: Box<object_store::Error>,
    },
    /// The request failed, and failed again when it was repeated.
    #[error("{url}: {source}")]
    Failed {
        /// The object.
        url: String,
        /// What the store said at last.
        source: Box<object_store::Error>,
    },
    /// An object holds other bytes than it should.
    #[error("{url}: {detail}")]
    Content {
        /// The object.
        url: String,
        /// What differs.
        detail: String,
    },
    /// A file of this machine that is sent or received.
    #[error("{url}: {source}")]
    Local {
        /// The object.
        url: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl StorageError {
    pub(crate) fn new(url: &str, source: object_store::Error) -> Self {
        use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
        let url = url.to_owned();
        match source {
            NotFound { .. } => Self::Missing { url },
            PermissionDenied { .. } | Unauthenticated { .. } => {
                Self::Denied { url, source: Box::new(source) }
            }
            source if is_final(&source) => Self::Refused { url, source: Box::new(source) },
            source => Self::Failed { url, source: Box::new(source) },
        }
    }

    /// Whether the same request may succeed another time.
    pub(crate) fn is_temporary(error: &object_store::Error) -> bool {
        use object_store::Error::{
            AlreadyExists, NotFound, NotModified, PermissionDenied, Precondition, Unauthenticated,
        };
        let told = matches!(
            error,
            NotFound { .. }
                | AlreadyExists { .. }
                | Precondition { .. }
                | NotModified { .. }
                | PermissionDenied { .. }
                | Unauthenticated { .. }
        );
        !told && !is_final(error)
    }

    /// The kind of error that a local file would give.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Url { .. } | Self::Connect { .. } | Self::Refused { .. } => ErrorKind::InvalidInput,
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Denied { .. } => ErrorKind::PermissionDenied,
            Self::Failed { .. } => ErrorKind::TimedOut,
            Self::Content { .. } => ErrorKind::InvalidData,
            Self::Local { source, .. } => source.kind(),
        }
    }
}

/// Whether the same request would fail again. The client tells its statuses only by words.
fn is_final(error: &object_store::Error) -> bool {
    use object_store::Error::{InvalidPath, NotImplemented, NotSupported};
    if matches!(error, InvalidPath { .. } | NotImplemented { .. } | NotSupported { .. }) {
        return true;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        let text = inner.to_string();
        let status = text.split_once("status code: ").map(|(_, rest)| rest);
        let refused = status.is_some_and(|status| {
            status.starts_with('4') && !status.starts_with("408") && !status.starts_with("429")
        });
        if refused || text.contains("redirect without LOCATION") || text.contains("non-partial response") {
            return true;
        }
        cause = inner.source();
    }
    false
}

impl From<StorageError> for std::io::Error {
    fn from(error: StorageError) -> Self {
        Self::new(error.kind(), error)
    }
}
