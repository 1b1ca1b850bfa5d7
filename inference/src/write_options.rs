//! How checkpoints are written.

use std::sync::Arc;

use crate::progress::Progress;

/// How a checkpoint is written, whatever is in it.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Sync everything to the disk before the target gets its name, so that a target that is there is whole also after a
    /// power loss. Without, it is so after an error or a kill, and the operating system writes to the disk later.
    pub fsync: bool,
    /// Told how far it is.
    pub progress: Arc<Progress>,
}
