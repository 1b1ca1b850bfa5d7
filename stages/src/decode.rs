//! `verify_images: decode`: the whole image, within limits.

use std::io::{BufReader, Cursor};

use image::{ImageError, ImageReader, Limits};
use packd_contracts::{Reason, Verdict};
use packd_sources::OpenImage;

/// Bytes a pixel may take while it is decoded (16-bit RGBA).
const MAX_PIXEL_BYTES: u64 = 8;

/// Decodes an image and drops the pixels.
///
/// # Errors
/// `image-truncated` when the bytes end too early, `image-unreadable` when they are wrong. A variant
/// that this decoder does not know, though Pillow may, passes.
pub(crate) fn decode_fully(image: OpenImage, max_pixels: u64) -> Result<(), Verdict> {
    let mut limits = Limits::default();
    limits.max_alloc = Some(max_pixels.saturating_mul(MAX_PIXEL_BYTES));
    let decoded = match image {
        OpenImage::File { file, .. } => decode(ImageReader::new(BufReader::new(file)), limits),
        OpenImage::Inline(bytes) => decode(ImageReader::new(Cursor::new(bytes)), limits),
    };
    match decoded {
        Ok(()) | Err(ImageError::Unsupported(_)) => Ok(()),
        Err(ImageError::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(Verdict::new(Reason::ImageTruncated, error.to_string()))
        }
        Err(ImageError::Limits(error)) => Err(Verdict::new(Reason::ImageTooLarge, error.to_string())),
        Err(error) => Err(Verdict::new(Reason::ImageUnreadable, error.to_string())),
    }
}

fn decode<R: std::io::BufRead + std::io::Seek>(
    reader: ImageReader<R>,
    limits: Limits,
) -> Result<(), ImageError> {
    let mut reader = reader.with_guessed_format()?;
    reader.limits(limits);
    reader.decode().map(drop)
}
