//! Format and size of an image, from its first bytes.
//!
//! Sizes are those that Pillow's `Image.open` reports: EXIF orientation is not applied.

use std::io::ErrorKind;

use imagesize::ImageType;
use packd_contracts::{Reason, Verdict};

use crate::image_tail::is_complete;
use crate::open_image::{ImageError, OpenImage};

/// An image format that the trainer's loader opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImageFormat {
    /// JPEG, any colour space.
    Jpeg,
    /// PNG, animated ones as their first frame.
    Png,
    /// WebP, animated ones as their first frame.
    WebP,
    /// GIF, animated ones as their first frame.
    Gif,
    /// Windows bitmap.
    Bmp,
    /// TIFF, the first page.
    Tiff,
}

/// What the head of an image says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    /// The format, by content.
    pub format: ImageFormat,
    /// Stored width in pixels.
    pub width: u32,
    /// Stored height in pixels.
    pub height: u32,
    /// EXIF orientation 5 to 8: a loader that applies it sees the sides swapped.
    pub transposed: bool,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl ImageFormat {
    /// By the magic number that a file starts with.
    pub fn of(head: &[u8]) -> Option<Self> {
        match imagesize::image_type(head).ok()? {
            ImageType::Jpeg => Some(Self::Jpeg),
            ImageType::Png => Some(Self::Png),
            ImageType::Webp => Some(Self::WebP),
            ImageType::Gif => Some(Self::Gif),
            ImageType::Bmp => Some(Self::Bmp),
            ImageType::Tiff => Some(Self::Tiff),
            _ => None,
        }
    }
}

/// Most headers end well before this; a second, longer read follows where one does not.
const FIRST_READ: usize = 8 << 10;
const SECOND_READ: usize = 64 << 10;

impl ImageHeader {
    /// Reads the header on the handle that is open already.
    ///
    /// # Errors
    /// A verdict (`image-empty`, `image-format`, `image-unreadable`, `image-truncated`), or a system that
    /// cannot read.
    pub fn read(image: &OpenImage) -> Result<Self, ImageError> {
        let unreadable = |error| image.fault(error);
        let size = image.size();
        let mut head = Vec::new();
        read_head(image, &mut head, FIRST_READ).map_err(unreadable)?;
        let format = format_of(&head).map_err(|verdict| named(image, verdict))?;
        let mut dimensions = imagesize::blob_size(&head);
        if dimensions.is_err() && size > head.len() as u64 {
            read_head(image, &mut head, SECOND_READ).map_err(unreadable)?;
            dimensions = imagesize::blob_size(&head);
        }
        if dimensions.is_err() && size > head.len() as u64 {
            dimensions = imagesize::reader_size(&mut image.reader());
        }
        let dimensions = match dimensions {
            Err(imagesize::ImageError::IoError(error)) if error.kind() != ErrorKind::UnexpectedEof => {
                return Err(unreadable(error));
            }
            dimensions => dimensions.map_err(broken_header),
        };
        let header = dimensions.and_then(|dimensions| Self::new(format, dimensions, &head, size));
        header.map_err(|verdict| named(image, verdict))
    }

    /// Checks that the image of this header is all there: its end marker, or, where it is not among the last
    /// bytes, its structure. Bitmaps have no end marker and are decoded, so look at the size first.
    ///
    /// # Errors
    /// The verdict `image-truncated`, or a system that cannot read.
    pub fn check_complete(&self, image: &OpenImage) -> Result<(), ImageError> {
        let pixels = u64::from(self.width) * u64::from(self.height);
        let complete = is_complete(image, self.format, pixels);
        if complete.map_err(|error| image.fault(error))? {
            return Ok(());
        }
        let detail = format!("the image breaks off; the file has {} bytes", self.bytes);
        Err(named(image, Verdict::new(Reason::ImageTruncated, detail)))
    }

    fn new(
        format: ImageFormat,
        size: imagesize::ImageSize,
        head: &[u8],
        bytes: u64,
    ) -> Result<Self, Verdict> {
        let size = as_pillow(format, size, head);
        let side = |side: usize| u32::try_from(side).ok().filter(|side| *side > 0);
        let (Some(width), Some(height)) = (side(size.width), side(size.height)) else {
            let detail = format!("the header says {}×{} pixels", size.width, size.height);
            return Err(Verdict::new(Reason::ImageUnreadable, detail));
        };
        let transposed = format == ImageFormat::Jpeg && is_transposed(head);
        Ok(Self { format, width, height, transposed, bytes })
    }
}

/// The size as Pillow has it, where the header alone says something else: a bitmap may be stored from the
/// top down (a negative height), a GIF's first frame may reach beyond its screen.
fn as_pillow(format: ImageFormat, size: imagesize::ImageSize, head: &[u8]) -> imagesize::ImageSize {
    let found = match format {
        ImageFormat::Bmp => bmp_height(head).map(|height| (size.width, height)),
        ImageFormat::Gif => {
            gif_frame_end(head).map(|(right, bottom)| (size.width.max(right), size.height.max(bottom)))
        }
        _ => None,
    };
    found.map_or(size, |(width, height)| imagesize::ImageSize { width, height })
}

/// The height field of a `BITMAPINFOHEADER` and its successors.
fn bmp_height(head: &[u8]) -> Option<usize> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    if u32_at(14)? < 40 {
        return None;
    }
    Some(u32_at(22)?.cast_signed().unsigned_abs() as usize)
}

/// Right and bottom edge of a GIF's first frame (GIF89a, 20: image descriptor).
fn gif_frame_end(head: &[u8]) -> Option<(usize, usize)> {
    let flags = *head.get(10)?;
    let mut at = 13 + if flags & 0x80 != 0 { 3 << ((flags & 7) + 1) } else { 0 };
    while *head.get(at)? == 0x21 {
        at += 2;
        while *head.get(at)? != 0 {
            at += 1 + usize::from(head[at]);
        }
        at += 1;
    }
    if head[at] != 0x2c {
        return None;
    }
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?)));
    Some((u16_at(at + 1)? + u16_at(at + 5)?, u16_at(at + 3)? + u16_at(at + 7)?))
}

fn format_of(head: &[u8]) -> Result<ImageFormat, Verdict> {
    if head.is_empty() {
        return Err(Verdict::new(Reason::ImageEmpty, "no bytes"));
    }
    ImageFormat::of(head).ok_or_else(|| {
        let start: String = String::from_utf8_lossy(&head[..head.len().min(16)]).escape_debug().collect();
        Verdict::new(
            Reason::ImageFormat,
            format!("not JPEG, PNG, WebP, GIF, BMP or TIFF; it starts with {start:?}"),
        )
    })
}

fn broken_header(error: imagesize::ImageError) -> Verdict {
    Verdict::new(Reason::ImageTruncated, format!("the header cannot be read: {error}"))
}

/// A verdict on a file says which.
fn named(image: &OpenImage, verdict: Verdict) -> ImageError {
    let OpenImage::File { path, .. } = image else { return verdict.into() };
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    Verdict::new(verdict.reason, format!("{name}: {}", verdict.detail)).into()
}

/// Makes `head` the first `len` bytes of the image, or all of them.
fn read_head(image: &OpenImage, head: &mut Vec<u8>, len: usize) -> std::io::Result<()> {
    let have = head.len();
    head.resize(image.size().min(len as u64) as usize, 0);
    image.read_exact_at(&mut head[have..], have as u64)
}

/// EXIF orientation 5 to 8, which swap width and height.
fn is_transposed(head: &[u8]) -> bool {
    const MARK: &[u8] = b"Exif\0\0";
    let Some(at) = memchr::memmem::find(head, MARK) else { return false };
    transposes(&head[at + MARK.len()..]).unwrap_or(false)
}

/// The orientation tag (0x0112) of the first directory of a TIFF structure (EXIF 2.32, 4.6).
fn transposes(tiff: &[u8]) -> Option<bool> {
    let little = tiff.starts_with(b"II");
    let u16_at = |at: usize| -> Option<u16> {
        let bytes: [u8; 2] = tiff.get(at..at + 2)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let u32_at = |at: usize| -> Option<u32> {
        let bytes: [u8; 4] = tiff.get(at..at + 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = u32_at(4)? as usize;
    for entry in 0..usize::from(u16_at(directory)?) {
        let at = directory.checked_add(2 + 12 * entry)?;
        if u16_at(at)? == 0x0112 {
            return Some((5..=8).contains(&u16_at(at + 8)?));
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_stored_from_the_top_down_have_a_height() {
        let picture = image::RgbImage::from_pixel(40, 30, image::Rgb([1, 2, 3]));
        let mut bytes = Vec::new();
        picture.write_to(&mut std::io::Cursor::new(&mut bytes), image::ImageFormat::Bmp).unwrap();
        bytes[22..26].copy_from_slice(&(-30_i32).to_le_bytes());
        let header = ImageHeader::read(&OpenImage::Inline(bytes)).unwrap();
        assert_eq!((header.width, header.height), (40, 30));
    }

    #[test]
    fn a_gif_is_as_large_as_its_first_frame_makes_it() {
        // Screen 1 × 1, no colour table, a comment, then a frame of 6 × 7 at (2, 3).
        let head = b"GIF89a\x01\0\x01\0\0\0\0\x21\xfe\x02hi\0\x2c\x02\0\x03\0\x06\0\x07\0\0";
        assert_eq!(gif_frame_end(head), Some((8, 10)));
        assert_eq!(gif_frame_end(&head[..20]), None);
    }
}
