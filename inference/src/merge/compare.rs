//! A merged checkpoint against its sources, bit for bit.

use std::path::Path;

use candle_core::DType;
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::source::{Reader, Role, Source};
use super::{MergePlan, Planned, Recipe};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::progress::Progress;

/// Bytes that are read at a time of a tensor that no source has.
const CHUNK: usize = 1 << 19;

/// A tensor, or a part of the configuration, that is not what the sources make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its name in the checkpoint.
    pub key: String,
    /// What differs.
    pub detail: String,
}

/// What the bytes of a tensor are, for those who want to look them up later. Hashes are XXH3 of 128 bits over the
/// elements in row-major order, little-endian, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorHash {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its dtype in the checkpoint.
    pub dtype: &'static str,
    /// Of its bytes in the checkpoint.
    pub checkpoint: String,
    /// Of what the sources make in that dtype; `None` where no source has it.
    pub sources: Option<String>,
}

/// What came of comparing a checkpoint with its sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Tensors whose bytes are those of the sources in the checkpoint's dtype.
    pub equal: usize,
    /// Tensors that no source has: those of an adapter that was not given.
    pub unknown: usize,
    /// Settings and tensors that differ, are missing, or are more than the model has.
    pub differences: Vec<Difference>,
    /// The tensors that are in both with the same shape, in the order of the model.
    pub tensors: Vec<TensorHash>,
}

impl MergePlan {
    /// Compares the configuration and the tensors of a merged checkpoint with what the sources make, each tensor in the
    /// dtype that the checkpoint has it in, some hundred kilobytes at a time. The seed does not count: tensors of an
    /// adapter that was not given are only counted.
    ///
    /// # Errors
    /// [`ModelError::Merge`](crate::ModelError::Merge) when the sources do not make a model; what reading the checkpoint
    /// says.
    pub fn compare(&self, checkpoint: &Path, progress: &Progress) -> Result<Comparison> {
        self.refuse_problems()?;
        let merged = Source::open(Role::Llm, checkpoint)?;
        let mut done = Comparison { equal: 0, unknown: 0, differences: Vec::new(), tensors: Vec::new() };
        done.compare_configs(&ModelConfig::read(checkpoint)?, &self.config);
        let bytes = |planned: &Planned| {
            let dtype = merged.tensors.get(&planned.name).and_then(|found| found.dtype.as_ref().ok());
            (planned.elements() * dtype.map_or(0, DType::size_in_bytes)) as u64
        };
        progress.start("comparing tensors", Some(self.tensors.iter().map(bytes).sum()));
        for planned in &self.tensors {
            self.compare_planned(planned, &merged, &mut done)?;
            progress.add(bytes(planned));
        }
        let known: std::collections::BTreeSet<&str> =
            self.tensors.iter().map(|planned| planned.name.as_str()).collect();
        for key in merged.tensors.keys().filter(|key| !known.contains(key.as_str())) {
            done.differ(key, "the model has no such tensor".into());
        }
        Ok(done)
    }

    fn compare_planned(&self, planned: &Planned, merged: &Source, done: &mut Comparison) -> Result<()> {
        let Some(found) = merged.tensors.get(&planned.name) else {
            done.differ(&planned.name, "it is not in the checkpoint".into());
            return Ok(());
        };
        let dtype = match &found.dtype {
            Ok(dtype) => *dtype,
            Err(other) => {
                done.differ(&planned.name, format!("it is {other} in the checkpoint"));
                return Ok(());
            }
        };
        if found.shape != planned.shape {
            let (found, expected) = (&found.shape, &planned.shape);
            done.differ(&planned.name, format!("its shape is {found:?}, of the sources {expected:?}"));
            return Ok(());
        }
        let Some(reader) = merged.reader(found) else {
            done.differ(&planned.name, "it is no tensor in the checkpoint".into());
            return Ok(());
        };
        if matches!(planned.recipe, Recipe::First(_)) {
            done.unknown += 1;
            done.tensors.push(only_hash(planned, &reader, dtype)?);
            return Ok(());
        }
        let (hash, differing) = self.compare_tensor(planned, &reader, dtype)?;
        done.tensors.push(hash);
        if differing == 0 {
            done.equal += 1;
            return Ok(());
        }
        let all = planned.elements();
        done.differ(&planned.name, format!("{differing} of {all} elements are not those of the sources"));
        Ok(())
    }

    /// The hashes of a tensor, and how many of its elements are not those of the sources.
    fn compare_tensor(
        &self,
        planned: &Planned,
        reader: &Reader<'_>,
        dtype: DType,
    ) -> Result<(TensorHash, usize)> {
        let size = dtype.size_in_bytes();
        let mut theirs = Vec::new();
        let (mut at, mut differing) = (0, 0);
        // As long as nothing differs one hash is that of both.
        let (mut checkpoint, mut sources) = (Xxh3::new(), None::<Xxh3>);
        self.stream(planned, dtype, |ours| {
            theirs.resize(ours.len(), 0);
            reader.read(at, &mut theirs)?;
            at += ours.len();
            if ours != theirs {
                let pairs = ours.chunks(size).zip(theirs.chunks(size));
                differing += pairs.filter(|(ours, theirs)| ours != theirs).count();
                sources.get_or_insert_with(|| checkpoint.clone());
            }
            if let Some(sources) = &mut sources {
                sources.update(ours);
            }
            checkpoint.update(&theirs);
            Ok(())
        })?;
        let sources = hex(sources.as_ref().unwrap_or(&checkpoint));
        Ok((TensorHash { sources: Some(sources), ..hash(planned, dtype, &checkpoint) }, differing))
    }
}

/// The hash of a tensor that no source has.
fn only_hash(planned: &Planned, reader: &Reader<'_>, dtype: DType) -> Result<TensorHash> {
    let all = planned.elements() * dtype.size_in_bytes();
    let mut bytes = Vec::new();
    let mut checkpoint = Xxh3::new();
    for start in (0..all).step_by(CHUNK) {
        bytes.resize((all - start).min(CHUNK), 0);
        reader.read(start, &mut bytes)?;
        checkpoint.update(&bytes);
    }
    Ok(hash(planned, dtype, &checkpoint))
}

fn hash(planned: &Planned, dtype: DType, checkpoint: &Xxh3) -> TensorHash {
    let (name, dtype) = (planned.name.clone(), dtype.as_str());
    TensorHash { name, dtype, checkpoint: hex(checkpoint), sources: None }
}

fn hex(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

impl Comparison {
    fn compare_configs(&mut self, theirs: &ModelConfig, ours: &ModelConfig) {
        let ids = |config: &ModelConfig| {
            [
                ("image_token_id", config.image_token_id.to_string()),
                ("video_token_id", config.video_token_id.to_string()),
                ("vision_start_token_id", config.vision_start_token_id.to_string()),
                ("vision_end_token_id", config.vision_end_token_id.to_string()),
                ("eos_token_id", format!("{:?}", config.eos_token_ids)),
                ("tie_word_embeddings", config.tie_word_embeddings.to_string()),
            ]
        };
        for ((key, theirs), (_, ours)) in ids(theirs).into_iter().zip(ids(ours)) {
            if theirs != ours {
                self.differ(&format!("config.json {key}"), format!("{theirs} (the sources: {ours})"));
            }
        }
        self.compare_settings("vision_config", &theirs.vision, &ours.vision);
        self.compare_settings("text_config", &theirs.text, &ours.text);
    }

    /// Compares what two parts of a configuration say, whatever their spelling.
    fn compare_settings<T: PartialEq + std::fmt::Debug>(&mut self, part: &str, theirs: &T, ours: &T) {
        if theirs == ours {
            return;
        }
        // A field a line.
        let (theirs, ours) = (format!("{theirs:#?}"), format!("{ours:#?}"));
        let lines = theirs.lines().zip(ours.lines()).filter(|(theirs, ours)| theirs != ours);
        let trimmed = |line: &str| line.trim().trim_end_matches(',').to_owned();
        let said: Vec<String> = lines
            .take(5)
            .map(|(theirs, ours)| format!("{} (the sources: {})", trimmed(theirs), trimmed(ours)))
            .collect();
        self.differ(&format!("config.json {part}"), said.join(", "));
    }

    fn differ(&mut self, key: &str, detail: String) {
        self.differences.push(Difference { key: key.to_owned(), detail });
    }
}
