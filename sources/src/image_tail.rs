//! Whether an image is all there.
//!
//! Energon's loader drops a whole pack when one of its images is cut, so a size in the header is not
//! enough. The end marker is looked for in the last bytes; only where it is not there (trailers of
//! cameras, odd writers) is the structure followed through the whole file.

use image::ImageReader;
use packd_contracts::Verdict;

use crate::image_header::ImageFormat;

/// Whether the image ends. `whole` reads the file; it is called only when head and tail do not tell.
pub(crate) fn is_complete(
    format: ImageFormat,
    head: &[u8],
    tail: &[u8],
    size: u64,
    whole: impl FnOnce() -> Result<Vec<u8>, Verdict>,
) -> Result<bool, Verdict> {
    let ends_with = |marker: &[u8]| memchr::memmem::rfind(tail, marker).is_some();
    let complete = match format {
        ImageFormat::Jpeg => ends_with(&[0xff, 0xd9]) || jpeg_ends(&whole()?),
        ImageFormat::Png => ends_with(b"IEND\xae\x42\x60\x82") || png_ends(&whole()?),
        // The size that the container states, without its own 8 bytes.
        ImageFormat::WebP => match head.get(4..8).and_then(|bytes| bytes.try_into().ok()) {
            Some(stated) => u64::from(u32::from_le_bytes(stated)) + 8 <= size,
            None => false,
        },
        ImageFormat::Gif => trimmed_end(tail) == Some(0x3b) || decodes_to_the_end(&whole()?),
        ImageFormat::Bmp | ImageFormat::Tiff => decodes_to_the_end(&whole()?),
    };
    Ok(complete)
}

fn trimmed_end(tail: &[u8]) -> Option<u8> {
    tail.iter().rev().find(|byte| **byte != 0).copied()
}

/// Follows the segments to the scan, then looks for the end marker: in the scan itself `ff` is always
/// followed by `00` or a restart marker (ISO/IEC 10918-1, B.1.1.5).
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut at = 2;
    loop {
        let Some([0xff, marker, high, low]) = bytes.get(at..at + 4) else { return false };
        match marker {
            0xff => at += 1,
            0xda => return memchr::memmem::find(&bytes[at..], &[0xff, 0xd9]).is_some(),
            _ => at += 2 + usize::from(u16::from_be_bytes([*high, *low])),
        }
    }
}

/// Follows the chunks to `IEND`.
fn png_ends(bytes: &[u8]) -> bool {
    let mut at = 8;
    loop {
        let Some(header) = bytes.get(at..at + 8) else { return false };
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let Some(next) = at.checked_add(length).and_then(|end| end.checked_add(12)) else { return false };
        if &header[4..] == b"IEND" {
            return next <= bytes.len();
        }
        at = next;
    }
}

/// For formats without an end marker: whether a decoder runs out of bytes. A variant that the decoder
/// does not know is not called truncated.
fn decodes_to_the_end(bytes: &[u8]) -> bool {
    let Ok(reader) = ImageReader::new(std::io::Cursor::new(bytes)).with_guessed_format() else { return true };
    match reader.decode() {
        Ok(_) => true,
        Err(image::ImageError::IoError(error)) => error.kind() != std::io::ErrorKind::UnexpectedEof,
        Err(image::ImageError::Decoding(_)) => false,
        Err(_) => true,
    }
}
