//! `packd model pixels`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use candle_core::{Device, Tensor};
use clap::Args;
use packd_contracts::{Counter, CounterOptions};

use super::{ResizerChoice, save};
use crate::error::{ModelError, Result};
use crate::pixels::{Normalisation, decode, patches};

/// Writes what the vision tower sees of images, for comparison with another processor: for image I the tensors
/// I.pixel_values [patches, channels·patch²] and I.image_grid_thw [3].
#[derive(Args)]
pub(super) struct PixelsArgs {
    /// Images
    #[arg(required = true)]
    images: Vec<PathBuf>,
    /// The safetensors file to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Hugging Face directory with a preprocessor_config.json [default: the profile's numbers]
    #[arg(long, value_name = "DIR")]
    processor: Option<PathBuf>,
    /// Whose resize images go through: the fast image processors' or the slow ones' [default: torchvision]
    #[arg(long, value_enum, default_value = "torchvision", hide_default_value = true)]
    resizer: ResizerChoice,
    /// Counting profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

pub(super) fn run(args: &PixelsArgs) -> Result<ExitCode> {
    let normalisation = args.processor.as_deref().map_or(Ok(Normalisation::CLIP), Normalisation::read)?;
    let counter = Counter::new(&CounterOptions {
        profile: args.profile.clone(),
        model: args.processor.clone(),
        ..CounterOptions::default()
    })?;
    let mut tensors = HashMap::new();
    for (number, path) in args.images.iter().enumerate() {
        let bytes = std::fs::read(path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        let named = |error: ModelError| ModelError::Image(format!("{}: {error}", path.display()));
        let cut = |image| patches(&image, counter.images(), &normalisation, args.resizer.into());
        let image = decode(&bytes).and_then(cut);
        let image = image.map_err(named)?;
        let grid = image.grid();
        let rows = grid.patches() as usize;
        let pixels = Tensor::from_slice(image.rows(), (rows, image.rows().len() / rows), &Device::Cpu)?;
        tensors.insert(format!("{number}.pixel_values"), pixels);
        let grid = Tensor::new(&[i64::from(grid.t), grid.h.into(), grid.w.into()], &Device::Cpu)?;
        tensors.insert(format!("{number}.image_grid_thw"), grid);
    }
    save(&tensors, &args.output)?;
    Ok(ExitCode::SUCCESS)
}
