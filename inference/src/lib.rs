//! The model path of packd: LLaVA-OneVision-2 on packed sequences.
//!
//! * [`LlavaOnevision2`] runs a Hugging Face checkpoint, dense or with experts, in f32, bf16 or f16.
//! * [`AttentionDomains`] are the boundaries of sequences in one row; a [`PackedBatch`] cannot be made without them.
//! * [`leak`] compares a pack with each of its sub-samples alone.
//! * [`merge`] makes such a checkpoint of a vision tower, a decoder and a processor.
//! * [`torch_file`] reads and writes files of `torch.save`; [`layout`] says what a Megatron checkpoint holds,
//!   [`convert`] makes one of a Hugging Face checkpoint, the other way round, or of other degrees, and [`consistency`]
//!   compares the two, as tensors and as models.

#![deny(missing_docs)]

pub mod agreement;
mod attention;
mod batch;
pub mod cli;
mod config;
pub mod consistency;
pub mod convert;
mod decoder;
mod domains;
mod durable;
mod encoder;
mod error;
mod experts;
mod flavour;
mod fused;
mod generate;
mod jpeg;
mod layers;
pub mod layout;
pub mod leak;
mod loss;
pub mod merge;
mod model;
pub mod packed_shards;
mod picture;
pub mod pixels;
mod probe;
mod progress;
mod records;
mod resize;
mod rotary;
mod shards;
pub mod torch_file;
mod turns;
mod vision;
mod weights;
mod write_options;

/// Tensors, dtypes and devices, of the version that this crate takes.
pub use candle_core;

pub use batch::{IGNORE, ImagePatches, PackedBatch, SubSample, block_positions};
pub use config::{ModelConfig, MoeConfig, RopeConfig, TextConfig, VisionConfig, YarnConfig};
pub use domains::{AttentionDomains, PaddingRule};
pub use encoder::{Encoder, EncoderOptions};
pub use error::{ModelError, Result};
pub use flavour::Flavour;
pub use generate::{Sampling, generate};
pub use loss::token_losses;
pub use model::LlavaOnevision2;
pub use picture::test_picture;
pub use probe::{NoProbe, Probe};
pub use progress::{Progress, ProgressNow};
pub use records::each_record;
pub use resize::Resizer;
pub use vision::vision_windows;
pub use weights::Weights;
pub use write_options::WriteOptions;
