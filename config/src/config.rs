//! The configuration itself: one struct for files, flags and the environment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::byte_size::ByteSize;
use crate::choices::*;

/// Everything that can be configured about a run.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Input files, URLs or globs: JSONL, a JSON array or one object, plain or gz, zst, xz, bz2
    #[arg(value_name = "INPUT", help_heading = "Input")]
    pub input: Vec<String>,

    /// Folder or URL that relative image paths start from [default: the folder of the input file]
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub image_root: Option<PathBuf>,

    /// Further folders or URLs below which images may lie; repeatable
    #[arg(long, value_name = "DIR", help_heading = "Input")]
    pub allow_root: Vec<PathBuf>,

    /// Follow symbolic links that lead out of the allowed roots
    #[arg(long, help_heading = "Input")]
    pub follow_symlinks: bool,

    /// Prompt for records that hold only a caption
    #[arg(long, value_name = "TEXT", help_heading = "Input")]
    pub caption_prompt: Option<String>,

    /// Keys of the record that are carried into the packed json; repeatable
    #[arg(long, value_name = "KEY", help_heading = "Input")]
    pub passthrough: Vec<String>,

    /// Longest input line
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(64 << 20), help_heading = "Input")]
    pub max_line_bytes: ByteSize,

    /// Hugging Face model folder: tokenizer, chat template, image processor [default: embedded Qwen3]
    #[arg(long, value_name = "DIR", help_heading = "Model", visible_aliases = ["tokenizer", "image-processor"])]
    pub model: Option<PathBuf>,

    /// Model profile: how tokens are counted (`packd config profiles` lists them)
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub profile: Option<String>,

    /// Lower limit of the image processor, in pixels [default: the profile's or the model folder's]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub min_pixels: Option<u64>,

    /// Upper limit of the image processor, in pixels [default: the profile's or the model folder's]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub max_pixels: Option<u64>,

    /// Let `min_pixels` and `max_pixels` differ from the model folder's preprocessor_config.json
    #[arg(long, help_heading = "Model")]
    pub override_processor: bool,

    /// Factor of a first resize before the processor's (28: as `qwen_vl_utils.fetch_image` does)
    #[arg(long, value_name = "N", help_heading = "Model", visible_alias = "factor")]
    pub first_resize: Option<u32>,

    /// The date that templates see through `strftime_now`, as YYYY-MM-DD
    #[arg(long, value_name = "DATE", help_heading = "Model")]
    pub template_date: Option<String>,

    /// Tokens of one packed sequence; required by `run` (`packd lengths` shows what each choice gives)
    #[arg(long, short = 'L', value_name = "TOKENS", help_heading = "Packing")]
    pub seq_len: Option<u32>,

    /// How samples are put into bins
    #[arg(long, value_name = "NAME", default_value_t = Algorithm::BestFitDecreasing, help_heading = "Packing")]
    pub algorithm: Algorithm,

    /// What is packed together
    #[arg(long, value_name = "NAME", default_value_t = Scope::Global, help_heading = "Packing")]
    pub scope: Scope,

    /// Samples of one window (with `scope: window`)
    #[arg(long, value_name = "N", default_value_t = 100_000, help_heading = "Packing")]
    pub window: u64,

    /// Sub-samples in one pack at most
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "Packing")]
    pub max_samples: u32,

    /// Images in one pack at most
    #[arg(long, value_name = "N", help_heading = "Packing")]
    pub max_images: Option<u32>,

    /// Vision patches in one pack at most
    #[arg(long, value_name = "N", help_heading = "Packing")]
    pub max_patches: Option<u64>,

    /// Room of each sub-sample is rounded up to this many tokens (context-parallel padding)
    #[arg(long, value_name = "TOKENS", default_value_t = 1, help_heading = "Packing")]
    pub pad_to_multiple: u32,

    /// What happens to a sample longer than `seq_len`
    #[arg(long, value_name = "POLICY", default_value_t = Overlong::Reject, help_heading = "Packing")]
    pub overlong: Overlong,

    /// Seed of every order that is shuffled
    #[arg(long, value_name = "N", default_value_t = 42, help_heading = "Packing")]
    pub seed: u64,

    /// How far images are checked
    #[arg(long, value_name = "LEVEL", default_value_t = VerifyImages::Header, help_heading = "Bad data")]
    pub verify_images: VerifyImages,

    /// Largest image, in pixels (the default is where Pillow refuses in the loader)
    #[arg(long, value_name = "N", default_value_t = 178_956_970, help_heading = "Bad data")]
    pub max_image_pixels: u64,

    /// What happens when `<image>` placeholders and images differ in number
    #[arg(long, value_name = "POLICY", default_value_t = PlaceholderMismatch::Reject, help_heading = "Bad data")]
    pub placeholder_mismatch: PlaceholderMismatch,

    /// What happens to special tokens spelled in the text
    #[arg(long, value_name = "POLICY", default_value_t = SpecialTokens::Reject, help_heading = "Bad data")]
    pub special_tokens_in_text: SpecialTokens,

    /// What happens to records with a system turn
    #[arg(long, value_name = "POLICY", default_value_t = SystemTurns::Reject, help_heading = "Bad data")]
    pub system: SystemTurns,

    /// What happens to a record whose id came before
    #[arg(long, value_name = "POLICY", default_value_t = DuplicateId::Keep, help_heading = "Bad data")]
    pub duplicate_id: DuplicateId,

    /// What happens when an image is gone or changed when its shard is written
    #[arg(long, value_name = "POLICY", default_value_t = ImageChanged::Fail, help_heading = "Bad data")]
    pub image_changed: ImageChanged,

    /// Share of rejected records above which the run ends with status 65 (from 1,000 records on)
    #[arg(long, value_name = "RATE", default_value_t = 0.01, help_heading = "Bad data")]
    pub max_reject_rate: f64,

    /// Stop at the first rejected record
    #[arg(long, help_heading = "Bad data")]
    pub fail_fast: bool,

    /// Output: a folder, or a URL (s3://, gs://, az://)
    #[arg(long, short = 'o', value_name = "DIR", help_heading = "Output", visible_alias = "output-dir")]
    pub output: Option<PathBuf>,

    /// How a packed sample is stored
    #[arg(long, value_name = "NAME", default_value_t = SampleClass::Packed, help_heading = "Output")]
    pub sample_class: SampleClass,

    /// Python module of the sample class that `dataset.yaml` names
    #[arg(
        long,
        value_name = "MODULE",
        default_value = "aiak_training_llm.data.multimodal",
        help_heading = "Output"
    )]
    pub sample_module: String,

    /// Name of the sample class in that module
    #[arg(long, value_name = "CLASS", default_value = "PackedCaptioningSample", help_heading = "Output")]
    pub sample_class_name: String,

    /// First part of every shard name and key: letters, digits, `_` and `-`
    #[arg(long, value_name = "NAME", default_value = "ps", help_heading = "Output")]
    pub shard_prefix: String,

    /// Packed samples in one shard at most
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = "Output")]
    pub max_samples_per_shard: u64,

    /// Size that a shard should not exceed
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(3_000_000_000), help_heading = "Output")]
    pub max_shard_size: ByteSize,

    /// Round the number of shards up to a multiple of this (data-parallel ranks × loader workers)
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Output")]
    pub shards_multiple: u64,

    /// Share of the shards that becomes the `val` split
    #[arg(long, value_name = "RATE", default_value_t = 0.0, help_heading = "Output")]
    pub val_fraction: f64,

    /// Form of the top-level dataset.yaml
    #[arg(long, value_name = "FORM", default_value_t = Metadataset::BlendEpochized, help_heading = "Output")]
    pub metadataset: Metadataset,

    /// What the weight of a folder is, where dataset.yaml has weights
    #[arg(long, value_name = "COUNT", default_value_t = Weight::Packs, help_heading = "Output")]
    pub weight: Weight,

    /// Energon subflavors of the top-level dataset.yaml
    #[arg(skip = BTreeMap::from([("augmentation".to_owned(), serde_json::Value::Bool(false))]))]
    pub subflavors: BTreeMap<String, serde_json::Value>,

    /// Write no index.sqlite (plain loading works without it)
    #[arg(long, help_heading = "Output")]
    pub no_sqlite: bool,

    /// Nodes that share the job; each reads a slice of the input and writes a part of the shards
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Running")]
    pub nodes: u32,

    /// Seconds to wait for the other nodes before giving up with status 75
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Running")]
    pub wait_timeout: u64,

    /// Seconds that a run may take to stop in order after SIGTERM or SIGINT
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Running")]
    pub grace: u64,

    /// CPU threads [default: all]
    #[arg(long, value_name = "N", help_heading = "Running")]
    pub threads: Option<usize>,

    /// Memory for record bytes that are read back while shards are written
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(64 << 20), help_heading = "Running")]
    pub read_budget: ByteSize,

    /// Check the checksums of finished shards before a run continues, not only their sizes
    #[arg(long, help_heading = "Running")]
    pub verify_resume: bool,

    /// Folder of this machine for what is written before it is sent to an object store [default: TMPDIR]
    #[arg(long, value_name = "DIR", help_heading = "Running")]
    pub scratch: Option<PathBuf>,

    /// Requests to object stores in flight at most
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Running")]
    pub store_concurrency: usize,

    /// How often a request to an object store is repeated, with growing pauses
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Running")]
    pub store_retries: usize,

    /// Seconds without a byte after which a request to an object store is repeated
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Running")]
    pub io_timeout: u64,
}

impl Config {
    /// Keys that change how a run goes, but never a byte of what it writes.
    pub const RUNTIME_KEYS: [&str; 10] = [
        "output",
        "wait_timeout",
        "grace",
        "threads",
        "read_budget",
        "verify_resume",
        "scratch",
        "store_concurrency",
        "store_retries",
        "io_timeout",
    ];
}
