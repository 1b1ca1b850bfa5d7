//! Opens the images that records name, and only below the allowed roots.

use std::fs::File;
use std::path::PathBuf;

use packd_contracts::{ImageRef, Reason, Verdict};

/// Which files an [`ImageStore`] may open.
#[derive(Debug, Clone, Default)]
pub struct ImageStoreOptions {
    /// Relative paths start here; without it, in the folder of the input file.
    pub image_root: Option<PathBuf>,
    /// Folders below which absolute paths are allowed, besides `image_root` and the input's folder.
    pub allow_root: Vec<PathBuf>,
    /// Follow symbolic links that lead out of the roots.
    pub follow_symlinks: bool,
}

/// An image that was opened for reading.
#[derive(Debug)]
pub enum OpenImage {
    /// A file, positioned at its start.
    File {
        /// The open handle.
        file: File,
        /// Its size in bytes when it was opened.
        size: u64,
        /// The path that was opened, for messages.
        path: PathBuf,
    },
    /// Bytes that stood in the record itself.
    Inline(Vec<u8>),
}

/// Opens images; cheap to share between threads.
#[derive(Debug)]
pub struct ImageStore {
    options: ImageStoreOptions,
    source_folders: Vec<PathBuf>,
}

impl ImageStore {
    /// A store for images of records from the given inputs.
    ///
    /// `source_folders[i]` is the folder of input `i`; relative paths start there when
    /// `image_root` is not set.
    pub fn new(options: ImageStoreOptions, source_folders: Vec<PathBuf>) -> Self {
        Self { options, source_folders }
    }

    /// Opens one image of a record of input `source`.
    ///
    /// # Errors
    /// A verdict: `image-missing`, `image-outside-root`, `image-scheme` or `image-unreadable`.
    pub fn open(&self, image: &ImageRef, source: usize) -> Result<OpenImage, Verdict> {
        let ImageRef::Path(path) = image else {
            let ImageRef::Inline(bytes) = image else { unreachable!() };
            return Ok(OpenImage::Inline(bytes.clone()));
        };
        let root = self.options.image_root.clone().unwrap_or_else(|| self.source_folders[source].clone());
        let full = root.join(path);
        let file = File::open(&full).map_err(|e| Verdict::new(Reason::ImageMissing, format!("{path}: {e}")))?;
        let size = file.metadata().map_err(|e| Verdict::new(Reason::ImageUnreadable, format!("{path}: {e}")))?.len();
        Ok(OpenImage::File { file, size, path: full })
    }
}
