//! The commands of `packd-model` and `packd-gpu`.

mod bench;
mod consistency;
mod convert;
mod forward;
mod generate;
mod layout;
mod leak_check;
mod merge;
mod pixels;
mod points;
mod progress_view;
mod validate;
mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use clap::{Args, Parser, Subcommand, ValueEnum};
use image::RgbImage;

use crate::config::ModelConfig;
use crate::convert::ConvertError;
use crate::encoder::{Encoder, EncoderOptions};
use crate::error::{ModelError, Result};
use crate::model::LlavaOnevision2;
use crate::pixels::decode;
use crate::resize::Resizer;
use crate::torch_file::TorchFileError;
use crate::weights::Weights;

/// The exit codes that packd has.
mod exit {
    /// A check found something.
    pub(super) const FAULTS: u8 = 1;
    /// Wrong usage.
    pub(super) const USAGE: u8 = 64;
    /// A record or a packed sample that cannot be used.
    pub(super) const DATA: u8 = 65;
    /// A file that cannot be read.
    pub(super) const NO_INPUT: u8 = 66;
    /// An output that cannot be written.
    pub(super) const CANNOT_CREATE: u8 = 73;
    /// Arithmetic that failed.
    pub(super) const INTERNAL: u8 = 70;
    /// Reading or writing failed.
    pub(super) const IO: u8 = 74;
    /// A model, tokenizer or profile that does not fit.
    pub(super) const CONFIG: u8 = 78;
}

/// Run LLaVA-OneVision-2 on packed sequences, and check that packs do not leak
#[derive(Parser)]
#[command(name = "packd model", version, max_term_width = 110)]
struct Cli {
    /// Do not show how far long work is
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the loss of records or of packed shards
    Forward(forward::ForwardArgs),
    /// Continue a prompt, with images
    Generate(generate::GenerateArgs),
    /// Compare packs with each of their sub-samples alone
    LeakCheck(leak_check::LeakCheckArgs),
    /// Write what the vision tower sees of images
    Pixels(pixels::PixelsArgs),
    /// Show the layout of a Megatron checkpoint, and what is wrong with it
    Layout(layout::LayoutArgs),
    /// Convert a checkpoint between Hugging Face and Megatron, or to other parallel degrees
    Convert(convert::ConvertArgs),
    /// Compare a Megatron checkpoint with the Hugging Face one, as tensors and as models
    Consistency(consistency::ConsistencyArgs),
    /// Merge a vision tower, a decoder and a processor into one checkpoint
    Merge(merge::MergeArgs),
    /// Compare a merged checkpoint with its sources, by its tensors and by what it computes
    Validate(validate::ValidateArgs),
    /// Measure tokens a second packed, padded and one at a time
    Bench(bench::BenchArgs),
}

/// Prints a line; a reader that has gone away ends the program instead of a panic.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        if writeln!(std::io::stdout(), $($text)*).is_err() {
            std::process::exit(crate::cli::exit::IO.into());
        }
    }};
}
use say;

/// Writes tensors; the folder must be there.
fn save(tensors: &HashMap<String, Tensor>, path: &Path) -> Result<()> {
    let write = |source| ModelError::Write { path: path.to_owned(), source };
    std::fs::File::create(path).map_err(write)?;
    candle_core::safetensors::save(tensors, path).map_err(|error| write(std::io::Error::other(error)))
}

/// Reads an image of any format.
fn read_image(path: &Path) -> Result<RgbImage> {
    let bytes = std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    decode(&bytes).map_err(|error| ModelError::Image(format!("{}: {error}", path.display())))
}

/// Which model, and how it is run.
#[derive(Args)]
struct ModelArgs {
    /// Hugging Face model directory: config.json, safetensors, and tokenizer and image processor if it has them
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    model: PathBuf,
    #[command(flatten)]
    run: RunArgs,
    /// Take random weights instead of the model's; only config.json is read
    #[arg(long, help_heading = "Model")]
    random_weights: bool,
}

/// What the inputs of a model are made with, and how it is run.
#[derive(Args)]
struct RunArgs {
    /// Hugging Face directory with the tokenizer and image processor that the packs were made with [default: the
    /// model's own, else those built into packd]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    tokenizer: Option<PathBuf>,
    /// Counting profile [default: llava-onevision-2 with the model's patch and merge sizes]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    profile: Option<String>,
    /// Whose resize images go through: the fast image processors' or the slow ones' [default: torchvision]
    #[arg(
        long,
        value_enum,
        default_value = "torchvision",
        hide_default_value = true,
        help_heading = "Model"
    )]
    resizer: ResizerChoice,
    /// Map token ids into the model's vocabulary, for tiny models without meaning
    #[arg(long, help_heading = "Model")]
    fold_ids: bool,
    /// Where to run [default: the GPU in packd-gpu, the CPU in packd-model]
    #[arg(long, value_enum, help_heading = "Model")]
    device: Option<DeviceChoice>,
    /// Numbers to compute in [default: f32 on the CPU, bf16 on a GPU]
    #[arg(long, value_enum, help_heading = "Model")]
    dtype: Option<DTypeChoice>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum DeviceChoice {
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, ValueEnum)]
enum ResizerChoice {
    Torchvision,
    Pillow,
}

impl From<ResizerChoice> for Resizer {
    fn from(choice: ResizerChoice) -> Self {
        match choice {
            ResizerChoice::Torchvision => Self::Torchvision,
            ResizerChoice::Pillow => Self::Pillow,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DTypeChoice {
    F32,
    Bf16,
    F16,
}

impl ModelArgs {
    fn load(&self) -> Result<(LlavaOnevision2, Encoder)> {
        let device = self.run.device()?;
        let dtype = self.run.dtype(&device);
        let config = ModelConfig::read(&self.model)?;
        let encoder = Encoder::new(&self.model, &config, &self.run.encoder())?;
        let weights = if self.random_weights {
            Weights::random(dtype, &device)
        } else {
            Weights::read(&self.model, dtype, &device)?
        };
        Ok((LlavaOnevision2::new(config, &weights)?, encoder))
    }
}

impl RunArgs {
    fn encoder(&self) -> EncoderOptions {
        EncoderOptions {
            tokenizer: self.tokenizer.clone(),
            profile: self.profile.clone(),
            fold_ids: self.fold_ids,
            resizer: self.resizer.into(),
        }
    }

    fn dtype(&self, device: &Device) -> DType {
        match self.dtype {
            Some(DTypeChoice::F32) => DType::F32,
            Some(DTypeChoice::Bf16) => DType::BF16,
            Some(DTypeChoice::F16) => DType::F16,
            None if device.is_cuda() => DType::BF16,
            None => DType::F32,
        }
    }

    fn device(&self) -> Result<Device> {
        let choice = self.device.unwrap_or(if cfg!(feature = "cuda") {
            DeviceChoice::Cuda
        } else {
            DeviceChoice::Cpu
        });
        match choice {
            DeviceChoice::Cpu => Ok(Device::Cpu),
            DeviceChoice::Cuda if cfg!(feature = "cuda") => Ok(Device::new_cuda(0)?),
            DeviceChoice::Cuda => Err(ModelError::Config {
                name: "--device cuda".into(),
                detail: "packd-model runs on the CPU; build packd-gpu (docs/inference.md)".into(),
            }),
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let done = match &cli.command {
        Command::Forward(args) => forward::run(args),
        Command::Generate(args) => generate::run(args),
        Command::LeakCheck(args) => leak_check::run(args),
        Command::Pixels(args) => pixels::run(args),
        Command::Layout(args) => layout::run(args),
        Command::Convert(args) => convert::run(args, cli.quiet),
        Command::Consistency(args) => consistency::run(args, cli.quiet),
        Command::Merge(args) => merge::run(args, cli.quiet),
        Command::Validate(args) => validate::run(args, cli.quiet),
        Command::Bench(args) => bench::run(args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(match error {
            ModelError::Read { .. } | ModelError::Input(_) => exit::NO_INPUT,
            ModelError::Config { .. } | ModelError::MissingTensor { .. } | ModelError::TensorShape { .. } => {
                exit::CONFIG
            }
            ModelError::Counter(_) => exit::CONFIG,
            ModelError::TorchFile(TorchFileError::Read { .. }) => exit::NO_INPUT,
            ModelError::TorchFile(TorchFileError::Write { .. }) => exit::CANNOT_CREATE,
            ModelError::Write { .. } => exit::CANNOT_CREATE,
            ModelError::Convert(
                ConvertError::TargetExists { .. }
                | ConvertError::TargetInSource { .. }
                | ConvertError::MountPoint { .. },
            ) => exit::CANNOT_CREATE,
            ModelError::Convert(ConvertError::Uneven { .. } | ConvertError::Degrees(_)) => exit::CONFIG,
            ModelError::Tensor(_) => exit::INTERNAL,
            _ => exit::DATA,
        })
    })
}
