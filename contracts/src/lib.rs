//! What packer and trainer must agree on.
//!
//! A packed sequence is only as good as the lengths it was packed with: one token too many and the
//! training job dies hours later. This crate holds every rule that decides such a length or such a
//! verdict, and nothing else: no threads, no clock, and no files but those of a model directory.
//!
//! * [`Sample`]: one training sample, as every input shape is normalised to.
//! * [`Verdict`] and [`Reason`]: why a record was not packed, with codes that never change.
//! * [`Counter`]: a sample's token length by one of two contracts, over a [`Tokenizer`] and an
//!   [`ImageProcessor`]; [`Profile`] names the combinations.

#![deny(missing_docs)]

mod chat_template;
mod count;
mod counter;
mod embedded;
mod encode;
mod frames;
mod grid;
mod hf_chat_template;
mod jinja;
mod llava_onevision_2;
mod media_list;
mod model_dir;
mod npy;
mod placeholders;
mod profile;
mod reason;
mod record;
mod sample;
mod tokenizer;

pub use chat_template::{ChatTemplate, Content, Message, Part, messages_of};
pub use count::{ExplainLine, Fit, TokenCount};
pub use counter::{Counter, CounterDescription, CounterError, CounterOptions, CounterParts};
pub use embedded::{EMBEDDED_TOKENIZER, qwen3_tokenizer};
pub use encode::EncodedSample;
pub use frames::Frames;
pub use grid::{BelowFactor, ImageGrid, ImageProcessor, ImageSize, ImageSteps, Reshape, SmartResize};
pub use jinja::{TemplateDate, TemplateSyntaxError};
pub use model_dir::{ModelDir, ModelDirError, ProcessorNumbers, TemplateSource};
pub use npy::read_positions;
pub use placeholders::{VIDEO, count_placeholders, keep_rounds, repair_placeholders};
pub use profile::{Contract, DEFAULT_PROFILE, PROFILES, Profile, fetch_image_resize};
pub use reason::{Reason, Verdict};
pub use record::{IMAGE, ParsedRecord, RecordOptions, parse_record};
pub use sample::{ImageRef, Sample};
pub use tokenizer::{Tokenizer, TokenizerError};
