//! Whether an image is all there.
//!
//! Energon's loader drops a whole pack when one of its images is cut, so a size in the header is not
//! enough. The end marker is looked for in the last bytes; only where it is not there (trailers of
//! cameras, odd writers) is the structure followed through the whole file.

use std::io::{BufRead, ErrorKind, Read, Seek};

use image::{ImageReader, Limits};

use crate::image_header::ImageFormat;
use crate::open_image::OpenImage;

/// Where end markers are looked for.
const TAIL: usize = 64;
/// Bytes a pixel may take while it is decoded (16-bit RGBA).
const MAX_PIXEL_BYTES: u64 = 8;

/// Whether the image ends; `pixels` is what its header says.
pub(crate) fn is_complete(image: &OpenImage, format: ImageFormat, pixels: u64) -> std::io::Result<bool> {
    let size = image.size();
    let mut tail = [0; TAIL];
    let tail = &mut tail[..size.min(TAIL as u64) as usize];
    image.read_exact_at(tail, size - tail.len() as u64)?;
    let ends_with = |marker: &[u8]| memchr::memmem::rfind(tail, marker).is_some();
    match format {
        ImageFormat::Jpeg => Ok(ends_with(&[0xff, 0xd9]) || told(jpeg_ends(image.reader()))?),
        ImageFormat::Png => Ok(ends_with(b"IEND\xae\x42\x60\x82") || told(png_ends(image.reader(), size))?),
        ImageFormat::WebP => webp_ends(image),
        ImageFormat::Gif => Ok(trimmed_end(tail) == Some(0x3b) || decodes_to_the_end(image, pixels)?),
        ImageFormat::Bmp | ImageFormat::Tiff => decodes_to_the_end(image, pixels),
    }
}

/// Running out of bytes is an answer.
fn told(result: std::io::Result<bool>) -> std::io::Result<bool> {
    match result {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        result => result,
    }
}

fn trimmed_end(tail: &[u8]) -> Option<u8> {
    tail.iter().rev().find(|byte| **byte != 0).copied()
}

/// The size that the container states, without its own 8 bytes.
fn webp_ends(image: &OpenImage) -> std::io::Result<bool> {
    let mut stated = [0; 4];
    image.read_exact_at(&mut stated, 4)?;
    Ok(u64::from(u32::from_le_bytes(stated)) + 8 <= image.size())
}

/// Follows the segments to the scan, then looks for the end marker: in the scan itself `ff` is always
/// followed by `00` or a restart marker (ISO/IEC 10918-1, B.1.1.5).
fn jpeg_ends(mut reader: impl BufRead + Seek) -> std::io::Result<bool> {
    reader.seek_relative(2)?;
    loop {
        let mut segment = [0; 4];
        reader.read_exact(&mut segment)?;
        match segment {
            // Fill bytes before a marker.
            [0xff, 0xff, ..] => reader.seek_relative(-3)?,
            [0xff, 0xda, ..] => return contains_end_of_image(reader),
            [0xff, _, high, low] => {
                let length = i64::from(u16::from_be_bytes([high, low]));
                // The length counts its own two bytes.
                reader.seek_relative(length - 2)?;
            }
            _ => return Ok(false),
        }
    }
}

fn contains_end_of_image(mut reader: impl BufRead) -> std::io::Result<bool> {
    let mut after_ff = false;
    loop {
        let bytes = reader.fill_buf()?;
        let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return Ok(false) };
        if after_ff && *first == 0xd9 || memchr::memmem::find(bytes, &[0xff, 0xd9]).is_some() {
            return Ok(true);
        }
        after_ff = *last == 0xff;
        let read = bytes.len();
        reader.consume(read);
    }
}

/// Follows the chunks to `IEND`.
fn png_ends(mut reader: impl Read + Seek, size: u64) -> std::io::Result<bool> {
    let mut at = 8;
    loop {
        reader.seek(std::io::SeekFrom::Start(at))?;
        let mut header = [0; 8];
        reader.read_exact(&mut header)?;
        let [a, b, c, d, name @ ..] = header;
        // Length, name and checksum besides the content.
        at += 12 + u64::from(u32::from_be_bytes([a, b, c, d]));
        if name == *b"IEND" {
            return Ok(at <= size);
        }
    }
}

/// For formats without an end marker: whether a decoder runs out of bytes. A variant that the decoder
/// does not know is not called truncated.
fn decodes_to_the_end(image: &OpenImage, pixels: u64) -> std::io::Result<bool> {
    let mut limits = Limits::default();
    limits.max_alloc = Some(pixels.saturating_mul(MAX_PIXEL_BYTES));
    let mut reader = ImageReader::new(image.reader()).with_guessed_format()?;
    reader.limits(limits);
    match reader.decode() {
        Ok(_) => Ok(true),
        Err(image::ImageError::IoError(error)) => told(Err(error)),
        Err(image::ImageError::Decoding(_)) => Ok(false),
        Err(_) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(bytes: &[u8], format: ImageFormat) -> bool {
        is_complete(&OpenImage::Inline(bytes.to_vec()), format, 1200).unwrap()
    }

    fn picture(format: image::ImageFormat) -> Vec<u8> {
        let picture = image::RgbImage::from_fn(40, 30, |x, y| image::Rgb([x as u8 * 6, y as u8 * 8, 77]));
        let mut bytes = Vec::new();
        picture.write_to(&mut std::io::Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    #[test]
    fn a_long_trailer_does_not_hide_the_end_and_a_cut_is_seen() {
        let formats = [
            (image::ImageFormat::Jpeg, ImageFormat::Jpeg),
            (image::ImageFormat::Png, ImageFormat::Png),
            (image::ImageFormat::WebP, ImageFormat::WebP),
            (image::ImageFormat::Gif, ImageFormat::Gif),
            (image::ImageFormat::Bmp, ImageFormat::Bmp),
            (image::ImageFormat::Tiff, ImageFormat::Tiff),
        ];
        for (written, format) in formats {
            let whole = picture(written);
            assert!(complete(&whole, format), "{format:?}");
            let trailed = [whole.as_slice(), &[b'x'; 40_000]].concat();
            assert!(complete(&trailed, format), "{format:?} with a trailer");
            let cut = [&whole[..whole.len() * 2 / 3], [0; 0].as_slice()].concat();
            assert!(!complete(&cut, format), "{format:?} cut");
        }
    }

    #[test]
    fn an_end_marker_over_a_buffer_border_is_found() {
        let scan = |before: usize| {
            let start = [0xff, 0xd8, 0xff, 0xff, 0xff, 0xe0, 0, 4, 1, 2, 0xff, 0xda, 0, 2];
            [start.as_slice(), &vec![7; before], &[0xff, 0xd9], &[b'x'; 100]].concat()
        };
        // The reader's buffer has 8 KiB.
        for before in 8192 - 20..8192 + 20 {
            assert!(complete(&scan(before), ImageFormat::Jpeg), "{before}");
        }
        assert!(!complete(&scan(9)[..20], ImageFormat::Jpeg));
    }
}
