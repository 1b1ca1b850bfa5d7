//! JPEG files decoded to the bits of libjpeg-turbo, which Pillow and torchvision decode with. Decoders that round the
//! cosine transform or spread the colours otherwise differ by several levels, and models see that.

use std::io::{self, BufRead, Read};
use std::panic::AssertUnwindSafe;

use image::RgbImage;
use mozjpeg::{ColorSpace, Decompress};

use crate::error::{ModelError, Result};

/// Bytes of a decoded image at most: the default of the `image` crate, which decodes all other formats.
const MOST_BYTES: usize = 512 << 20;

/// Decodes a JPEG file as Pillow's `convert("RGB")` does.
///
/// # Errors
/// [`ModelError::Image`] when the file is broken or ends too soon, where libjpeg itself would fill up with grey.
pub(crate) fn decode(bytes: &[u8]) -> Result<RgbImage> {
    // mozjpeg tells of a broken file by unwinding from libjpeg's callback, without calling the panic hook.
    match std::panic::catch_unwind(AssertUnwindSafe(|| decode_or_unwind(bytes))) {
        Ok(decoded) => decoded.map_err(|error| ModelError::Image(format!("JPEG: {error}"))),
        Err(told) => {
            let message = told.downcast_ref::<String>().map_or("libjpeg fatal error", String::as_str);
            Err(ModelError::Image(format!("JPEG: {message}")))
        }
    }
}

fn decode_or_unwind(bytes: &[u8]) -> io::Result<RgbImage> {
    let file = Decompress::new_reader(Whole(bytes))?;
    let (width, height) = file.size();
    // Pillow goes by the number of components, and takes libjpeg's guess of which three they are.
    let is_cmyk = file.components().len() == 4;
    let channels = if is_cmyk { 4 } else { 3 };
    if width.saturating_mul(height).saturating_mul(channels) > MOST_BYTES {
        return Err(io::Error::other(format!("{width} x {height} is too large to decode")));
    }
    let mut decoding =
        file.to_colorspace(if is_cmyk { ColorSpace::JCS_CMYK } else { ColorSpace::JCS_RGB })?;
    let mut pixels: Vec<u8> = decoding.read_scanlines()?;
    if is_cmyk {
        pixels = pixels.as_chunks::<4>().0.iter().flat_map(|pixel| rgb_of_cmyk(*pixel)).collect();
    }
    RgbImage::from_raw(width as u32, height as u32, pixels).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `cmyk2rgb` of Pillow's `Convert.c`, on ink stored as Adobe does: 255 where there is none.
fn rgb_of_cmyk([cyan, magenta, yellow, black]: [u8; 4]) -> [u8; 3] {
    [cyan, magenta, yellow].map(|stored| {
        let product = u32::from(255 - stored) * u32::from(black) + 128;
        let ink = ((product >> 8) + product) >> 8;
        black.saturating_sub(ink as u8)
    })
}

/// A file whose end is an error: libjpeg asks for more only where something is missing.
struct Whole<'a>(&'a [u8]);

impl Read for Whole<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Whole<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.0.is_empty() {
            return Err(io::Error::other("the file ends too soon"));
        }
        Ok(self.0)
    }

    fn consume(&mut self, amount: usize) {
        self.0 = self.0.get(amount..).unwrap_or_default();
    }
}
