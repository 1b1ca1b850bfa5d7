//! How the packs are counted again, and what they are held against.

use std::path::Path;

use packd_config::Config;
use packd_contracts::Counter;
use serde_json::Value;

use super::VerifyOptions;
use crate::error::Error;
use crate::job::counter_options;
use crate::report::Report;

/// Whose lengths the recount gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counting {
    /// The run's own: every length must come out the same.
    AsWritten,
    /// Those of another model or other limits, asked for by flags.
    Other,
    /// The default profile's, since nothing says how the set was counted.
    Unknown,
}

/// The counter, and the limits of a pack.
pub(super) struct Rules {
    pub(super) counter: Counter,
    pub(super) counting: Counting,
    pub(super) seq_len: u32,
    /// Room of each sub-sample is rounded up to this.
    pub(super) pad_to_multiple: u32,
    pub(super) max_samples: Option<u32>,
    pub(super) max_images: Option<u32>,
    pub(super) max_patches: Option<u64>,
    /// The part of the packs whose lengths are counted again.
    share: f64,
    pub(super) warnings: Vec<String>,
}

impl Rules {
    pub(super) fn new(options: &VerifyOptions, run_of: Option<&Path>) -> Result<Self, Error> {
        let saved = run_of.map(saved_config).transpose()?.flatten();
        let given = options.model.is_some()
            || options.profile.is_some()
            || options.min_pixels.is_some()
            || options.max_pixels.is_some();
        let counting = match (given, &saved) {
            (true, _) => Counting::Other,
            (false, Some(_)) => Counting::AsWritten,
            (false, None) => Counting::Unknown,
        };
        let mut config = saved.clone().unwrap_or_default();
        if options.model.is_some() {
            config.model.clone_from(&options.model);
            // Another model's limits, not those of the saved configuration.
            (config.min_pixels, config.max_pixels) = (None, None);
        }
        if options.profile.is_some() {
            config.profile.clone_from(&options.profile);
        }
        config.min_pixels = options.min_pixels.or(config.min_pixels);
        config.max_pixels = options.max_pixels.or(config.max_pixels);
        config.override_processor |= options.min_pixels.is_some() || options.max_pixels.is_some();
        let help = "pass --seq-len TOKENS, what the set was packed for: nothing in the folder says it";
        let seq_len = options.seq_len.or(config.seq_len).ok_or(Error::NotSet { key: "seq_len", help })?;
        let counter = Counter::new(&counter_options(&config)?)?;
        let mut warnings = Vec::new();
        if counting == Counting::AsWritten
            && let Some(report) = run_of.and_then(|output| Report::read(output).ok())
        {
            warnings.extend(changed_counter(&report.counter, &counter));
        }
        Ok(Self {
            counter,
            counting,
            seq_len,
            pad_to_multiple: config.pad_to_multiple.max(1),
            max_samples: saved.as_ref().map(|config| config.max_samples),
            max_images: config.max_images,
            max_patches: config.max_patches,
            share: options.sample,
            warnings,
        })
    }

    /// Whether the lengths of this pack are counted again: the same choice every time.
    pub(super) fn recounts(&self, key: &str) -> bool {
        let place = xxhash_rust::xxh3::xxh3_64(key.as_bytes()) as f64 / u64::MAX as f64;
        self.share >= 1.0 || place < self.share
    }

    /// What a sub-sample takes in a sequence.
    pub(super) fn room(&self, length: u64) -> u64 {
        length.checked_next_multiple_of(u64::from(self.pad_to_multiple)).unwrap_or(u64::MAX)
    }
}

fn saved_config(output: &Path) -> Result<Option<Config>, Error> {
    let path = output.join("run/config.resolved.yaml");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(Config::from_yaml(&text, &path.display().to_string())?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::State { path, message: error.to_string() }),
    }
}

/// A model folder that changed since the run explains every length that differs.
fn changed_counter(then: &Value, now: &Counter) -> Option<String> {
    let now = serde_json::to_value(now.describe()).ok()?;
    let (then, now) = (then.as_object()?, now.as_object()?);
    let key = now.keys().find(|key| *key != "notes" && then.get(*key) != now.get(*key))?;
    Some(format!("the model is not what the run counted with: its `{key}` differs"))
}
