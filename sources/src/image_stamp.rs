//! Whether images are still the files that were measured.

use xxhash_rust::xxh3::Xxh3;

use crate::open_image::OpenImage;

/// Hash of size and time of change of the image files of a sample, in order. Images that stand in the
/// record count nothing: they change with it.
#[derive(Clone, Default)]
pub struct ImageStamp(Xxh3);

impl ImageStamp {
    /// Adds the next image.
    pub fn add(&mut self, image: &OpenImage) {
        let (size, modified) = match image {
            OpenImage::File { size, modified, .. } => (*size, *modified),
            OpenImage::Object(image) => (image.version.size, image.version.modified),
            OpenImage::Inline(_) => return,
        };
        self.0.update(&size.to_le_bytes());
        self.0.update(&modified.to_le_bytes());
    }

    /// The images are unchanged while this is the same.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}
