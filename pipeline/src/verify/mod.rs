//! `packd verify`: re-reads everything that was written and checks every promise.

mod braces;
mod context;
mod dataset_yaml;
mod fault;
mod files;
mod images;
mod info;
mod loader;
mod metadataset;
mod records;
mod report;
mod rules;
mod sample;
mod set;
mod shard;
mod split;
mod sqlite;
mod table_rows;
mod tables;

use std::path::PathBuf;

pub use fault::{Fault, FaultKind};
pub(crate) use images::{media_type, whole_image};
pub(crate) use info::Info;
pub use report::VerifyReport;
pub(crate) use split::split_sizes;
pub(crate) use sqlite::open as open_sqlite;

use crate::error::Error;
use crate::output::Output;
use crate::packed_set::Layout;
use context::Context;
use rules::Rules;

/// What is verified, and how its packs are counted again.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// The output of a run, or any folder of packed WebDataset shards.
    pub folder: PathBuf,
    /// A model folder to count with, instead of the run's.
    pub model: Option<PathBuf>,
    /// A profile to count with, instead of the run's.
    pub profile: Option<String>,
    /// Smallest image area in pixels, instead of the run's.
    pub min_pixels: Option<u64>,
    /// Largest image area in pixels, instead of the run's.
    pub max_pixels: Option<u64>,
    /// Tokens that a pack may hold, instead of the run's; needed where nothing says it.
    pub seq_len: Option<u32>,
    /// The share of the packs whose lengths are counted again, above 0 and at most 1. Everything else
    /// is checked for all packs.
    pub sample: f64,
    /// CPU threads; `None` for all.
    pub threads: Option<usize>,
}

impl VerifyOptions {
    /// Verifies a folder by what its own run says, and counts every pack again.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            model: None,
            profile: None,
            min_pixels: None,
            max_pixels: None,
            seq_len: None,
            sample: 1.0,
            threads: None,
        }
    }
}

/// Verifies a packed data set: the output of a run with all that belongs to it, or any folder of packed
/// WebDataset shards, also one that packd did not write.
///
/// Memory does not grow with the shards but by their index and some 50 bytes a pack: a thread holds one
/// member of one packed sample at a time.
///
/// A set in an object store is received as a whole first, into the folder for temporary files.
///
/// # Errors
/// Only what keeps it from looking at all: no data set, no `seq_len`, a model that cannot be loaded.
/// Everything that is wrong with the set is a [`Fault`] of the report.
pub fn verify(options: &VerifyOptions) -> Result<VerifyReport, Error> {
    let output = Output::open_existing(&options.folder)?;
    output.fetch_all()?;
    let layout = Layout::find(output.folder())?;
    let rules = Rules::new(options, layout.run_of.as_deref())?;
    let pool = crate::job::pool(options.threads)?;
    let context = Context::new(&layout, rules);
    pool.install(|| {
        for data_set in &layout.sets {
            set::check(&context, data_set);
        }
        if layout.is_output {
            metadataset::check(&context);
            tables::check(&context);
            records::check(&context);
            files::check(&context);
        }
    });
    Ok(VerifyReport::new(context))
}
