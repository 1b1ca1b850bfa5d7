//! Format, size and completeness of an image, from its first and last bytes.
//!
//! Sizes are those that Pillow's `Image.open` reports: EXIF orientation is not applied.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use imagesize::ImageType;
use packd_contracts::{Reason, Verdict};

use crate::image_store::OpenImage;
use crate::image_tail::is_complete;

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

/// What the head and tail of an image say.
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
/// Where end markers are looked for.
const TAIL: usize = 64;

impl ImageHeader {
    /// Reads the header on the handle that is open already, and checks that the image is whole.
    ///
    /// # Errors
    /// A verdict: `image-empty`, `image-format`, `image-unreadable`, `image-truncated`.
    pub fn read(image: &OpenImage) -> Result<Self, Verdict> {
        match image {
            OpenImage::File { file, size, path, .. } => Self::of_file(file, *size).map_err(|mut verdict| {
                let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
                verdict.detail = format!("{name}: {}", verdict.detail);
                verdict
            }),
            OpenImage::Inline(bytes) => Self::of_bytes(bytes),
        }
    }

    fn of_bytes(bytes: &[u8]) -> Result<Self, Verdict> {
        let format = format_of(bytes)?;
        let size = imagesize::blob_size(bytes).map_err(broken_header)?;
        let tail = &bytes[bytes.len().saturating_sub(TAIL)..];
        let header = Self::new(format, size, bytes, bytes.len() as u64)?;
        if is_complete(format, bytes, tail, bytes.len() as u64, || Ok(bytes.to_vec()))? {
            return Ok(header);
        }
        Err(truncated(bytes.len() as u64))
    }

    fn of_file(file: &File, size: u64) -> Result<Self, Verdict> {
        let unreadable = |error: std::io::Error| Verdict::new(Reason::ImageUnreadable, error.to_string());
        let mut head = Vec::new();
        read_head(file, &mut head, FIRST_READ.min(size as usize)).map_err(unreadable)?;
        let format = format_of(&head)?;
        let mut dimensions = imagesize::blob_size(&head);
        if dimensions.is_err() && size > head.len() as u64 {
            read_head(file, &mut head, SECOND_READ.min(size as usize)).map_err(unreadable)?;
            dimensions = imagesize::blob_size(&head);
        }
        if dimensions.is_err() && size > head.len() as u64 {
            let mut reader = BufReader::new(FileAt { file, at: 0, size });
            dimensions = imagesize::reader_size(&mut reader);
        }
        let header = Self::new(format, dimensions.map_err(broken_header)?, &head, size)?;
        let mut tail = [0; TAIL];
        let tail = if size as usize <= head.len() {
            &head[head.len().saturating_sub(TAIL)..]
        } else {
            let at = size.saturating_sub(TAIL as u64);
            let tail = &mut tail[..(size - at) as usize];
            file.read_exact_at(tail, at).map_err(unreadable)?;
            &*tail
        };
        let whole = || {
            let mut bytes = Vec::new();
            read_head(file, &mut bytes, size as usize).map_err(unreadable)?;
            Ok(bytes)
        };
        if is_complete(format, &head, tail, size, whole)? { Ok(header) } else { Err(truncated(size)) }
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
    let reason = match error {
        imagesize::ImageError::IoError(ref error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
            Reason::ImageUnreadable
        }
        _ => Reason::ImageTruncated,
    };
    Verdict::new(reason, format!("the header cannot be read: {error}"))
}

fn truncated(size: u64) -> Verdict {
    Verdict::new(Reason::ImageTruncated, format!("the image breaks off; the file has {size} bytes"))
}

fn read_head(file: &File, head: &mut Vec<u8>, len: usize) -> std::io::Result<()> {
    let have = head.len();
    head.resize(len, 0);
    file.read_exact_at(&mut head[have..], have as u64)
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

/// A file read by place, so that a shared handle's own position does not move.
struct FileAt<'a> {
    file: &'a File,
    at: u64,
    size: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for FileAt<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.size.checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
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
