//! `verify_images: decode`: the whole image, within limits.

use image::{ImageReader, Limits};
use packd_contracts::{Reason, Verdict};
use packd_sources::{ImageError, OpenImage};

/// Bytes a pixel may take while it is decoded (16-bit RGBA).
const MAX_PIXEL_BYTES: u64 = 8;

/// Decodes an image and drops the pixels.
///
/// # Errors
/// `image-truncated` when the bytes end too early, `image-unreadable` when they are wrong; a system that
/// cannot read. A variant that this decoder does not know, though Pillow may, passes.
pub(crate) fn decode_fully(image: &OpenImage, max_pixels: u64) -> Result<(), ImageError> {
    let mut limits = Limits::default();
    limits.max_alloc = Some(max_pixels.saturating_mul(MAX_PIXEL_BYTES));
    let reader = ImageReader::new(image.reader()).with_guessed_format();
    let mut reader = reader.map_err(|error| image.fault(error))?;
    reader.limits(limits);
    let verdict = match reader.decode() {
        Ok(_) | Err(image::ImageError::Unsupported(_)) => return Ok(()),
        Err(image::ImageError::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Verdict::new(Reason::ImageTruncated, error.to_string())
        }
        Err(image::ImageError::IoError(error)) => return Err(image.fault(error)),
        Err(image::ImageError::Limits(error)) => Verdict::new(Reason::ImageTooLarge, error.to_string()),
        Err(error) => Verdict::new(Reason::ImageUnreadable, error.to_string()),
    };
    Err(verdict.into())
}
