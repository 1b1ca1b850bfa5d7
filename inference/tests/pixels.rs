//! Pixel values against Hugging Face's image processors; `pixels/make.py` made the images and the values.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use candle_core::{DType, Device};
use packd_contracts::{BelowFactor, ImageProcessor};
use packd_inference::pixels::{Normalisation, decode, patches};
use packd_inference::{ModelError, Resizer};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pixels")
}

/// That of `pixels/preprocessor_config.json`.
const PROCESSOR: ImageProcessor = ImageProcessor {
    patch_size: 14,
    merge_size: 2,
    reshape: None,
    first_resize: None,
    min_pixels: 3136,
    max_pixels: 3136,
    max_ratio: 200,
    below_factor: BelowFactor::Scale,
};

#[test]
fn every_value_is_that_of_the_image_processors() {
    let folder = folder();
    let expected = candle_core::safetensors::load(folder.join("expected.safetensors"), &Device::Cpu).unwrap();
    let normalisation = Normalisation::read(&folder).unwrap();
    let mut compared = 0;
    for (name, values) in &expected {
        let Some((name, resizer)) = name.rsplit_once('.').filter(|(_, kind)| *kind != "grid") else {
            continue;
        };
        let resizer = if resizer == "pillow" { Resizer::Pillow } else { Resizer::Torchvision };
        let image = decode(&std::fs::read(folder.join(name)).unwrap()).unwrap();
        let found = patches(&image, &PROCESSOR, &normalisation, resizer).unwrap();
        let grid: Vec<u8> = expected[&format!("{name}.grid")].flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(grid, [1, found.grid().h as u8, found.grid().w as u8], "{name}");
        let values: Vec<u8> = values.flatten_all().unwrap().to_dtype(DType::U8).unwrap().to_vec1().unwrap();
        let a_colour = (PROCESSOR.patch_size * PROCESSOR.patch_size) as usize;
        let levels = found.rows().iter().enumerate().map(|(at, value)| {
            let colour = at / a_colour % 3;
            ((value * normalisation.std[colour] + normalisation.mean[colour]) * 255.0).round() as u8
        });
        assert!(levels.eq(values), "{name} by {resizer:?}");
        compared += 1;
    }
    assert_eq!(compared, 2 * 13);
}

#[test]
fn a_jpeg_that_ends_too_soon_or_is_broken_is_an_error() {
    for name in ["420.jpg", "progressive.jpg", "cmyk.jpg"] {
        let whole = std::fs::read(folder().join(name)).unwrap();
        for end in [3, 100, whole.len() / 2, whole.len() * 3 / 4] {
            let error = decode(&whole[..end]).unwrap_err();
            assert!(matches!(&error, ModelError::Image(told) if told.contains("JPEG: ")), "{end}: {error}");
        }
        // A quantisation table of another length than there is.
        let mut broken = whole;
        let table = broken.windows(2).position(|marker| marker == [0xff, 0xdb]).unwrap();
        broken[table + 3] = 0x11;
        assert!(decode(&broken).is_err());
    }
}
