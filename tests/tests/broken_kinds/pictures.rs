//! Image files of every kind, written by hand where no encoder writes them.

use std::path::{Path, PathBuf};

use image::codecs::gif::GifEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ExtendedColorType, Frame, ImageEncoder, ImageFormat, RgbImage};

/// Made with Pillow, because no encoder at hand writes them: see `tests/fixtures/README.md`.
const CMYK_JPEG: &[u8] = include_bytes!("../../fixtures/cmyk.jpg");
const ANIMATED_WEBP: &[u8] = include_bytes!("../../fixtures/animated.webp");

/// The folder of a data set, where its images are written.
pub(crate) struct Pictures {
    folder: PathBuf,
}

impl Pictures {
    pub(crate) fn new(folder: &Path) -> Self {
        std::fs::create_dir_all(folder.join("images")).unwrap();
        Self { folder: folder.to_owned() }
    }

    /// Writes a file; `name` is below the folder of the data, and returned.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        name.to_owned()
    }

    /// A folder in the place of an image.
    pub(crate) fn folder(&self, name: &str) -> String {
        std::fs::create_dir_all(self.folder.join(name)).unwrap();
        name.to_owned()
    }

    /// The absolute path of a file that was written.
    pub(crate) fn absolute(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }
}

fn photo(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| image::Rgb([(x * 5) as u8, (y * 3) as u8, (x ^ y) as u8]))
}

pub(crate) fn jpeg(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    photo(width, height).write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, 70)).unwrap();
    bytes
}

/// A JPEG of one gray, for sizes that would take long otherwise.
pub(crate) fn plain_jpeg(width: u16, height: u16) -> Vec<u8> {
    let (mut bytes, pixels) = (Vec::new(), vec![90; usize::from(width) * usize::from(height)]);
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 40);
    encoder.encode(&pixels, width.into(), height.into(), ExtendedColorType::L8).unwrap();
    bytes
}

/// Stored lying, to be shown turned by a quarter (orientation 6).
pub(crate) fn exif_rotated_jpeg(width: u32, height: u32) -> Vec<u8> {
    // A TIFF directory of one entry: tag 0x0112, one SHORT, 6 (EXIF 2.32, 4.6).
    let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 70);
    encoder.set_exif_metadata(exif).unwrap();
    photo(width, height).write_with_encoder(encoder).unwrap();
    bytes
}

pub(crate) fn cmyk_jpeg() -> Vec<u8> {
    CMYK_JPEG.to_vec()
}

pub(crate) fn png(image: &DynamicImage) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

pub(crate) fn rgb_png(width: u32, height: u32) -> Vec<u8> {
    png(&DynamicImage::ImageRgb8(photo(width, height)))
}

pub(crate) fn rgba_png(width: u32, height: u32) -> Vec<u8> {
    png(&DynamicImage::ImageRgba8(DynamicImage::ImageRgb8(photo(width, height)).to_rgba8()))
}

pub(crate) fn gray_16_bit_png(width: u32, height: u32) -> Vec<u8> {
    png(&DynamicImage::ImageLuma16(DynamicImage::ImageRgb8(photo(width, height)).to_luma16()))
}

/// A palette whose first colour is transparent.
pub(crate) fn palette_png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(vec![0, 0, 0, 250, 10, 10, 10, 250, 10, 10, 10, 250]);
    encoder.set_trns(vec![0]);
    let pixels: Vec<u8> = (0..width * height).map(|at| (at % 4) as u8).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

/// One bit a pixel, all black: a small file that is huge when it is decoded.
pub(crate) fn black_png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    let pixels = vec![0; width.div_ceil(8) as usize * height as usize];
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

pub(crate) fn animated_gif(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new_with_speed(&mut bytes, 30);
    for frame in 0..4 {
        let mut image = DynamicImage::ImageRgb8(photo(width, height)).to_rgba8();
        image.pixels_mut().for_each(|pixel| pixel.0[0] = frame * 60);
        encoder.encode_frame(Frame::new(image)).unwrap();
    }
    drop(encoder);
    bytes
}

pub(crate) fn animated_webp() -> Vec<u8> {
    ANIMATED_WEBP.to_vec()
}
