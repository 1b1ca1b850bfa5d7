//! A merged checkpoint against its sources, bit for bit.

use std::path::Path;

use serde::Serialize;

use super::source::{Role, Source};
use super::{MergePlan, Recipe};
use crate::config::ModelConfig;
use crate::error::Result;

/// A tensor, or a part of the configuration, that is not what the sources make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its name in the checkpoint.
    pub key: String,
    /// What differs.
    pub detail: String,
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
}

impl MergePlan {
    /// Compares the configuration and the tensors of a merged checkpoint with what the sources make, each tensor in the
    /// dtype that the checkpoint has it in, some hundred kilobytes at a time. The seed does not count: tensors of an
    /// adapter that was not given are only counted.
    ///
    /// # Errors
    /// [`ModelError::Merge`](crate::ModelError::Merge) when the sources do not make a model; what reading the checkpoint
    /// says.
    pub fn compare(&self, checkpoint: &Path) -> Result<Comparison> {
        self.refuse_problems()?;
        let merged = Source::open(Role::Llm, checkpoint)?;
        let mut done = Comparison { equal: 0, unknown: 0, differences: Vec::new() };
        let config = ModelConfig::read(checkpoint)?;
        done.compare_settings("vision_config", &config.vision, &self.config.vision);
        done.compare_settings("text_config", &config.text, &self.config.text);
        for planned in &self.tensors {
            let Some(found) = merged.tensors.get(&planned.name) else {
                done.differ(&planned.name, "it is not in the checkpoint".into());
                continue;
            };
            let dtype = match &found.dtype {
                Ok(dtype) => *dtype,
                Err(other) => {
                    done.differ(&planned.name, format!("it is {other} in the checkpoint"));
                    continue;
                }
            };
            if found.shape != planned.shape {
                let (found, expected) = (&found.shape, &planned.shape);
                done.differ(&planned.name, format!("its shape is {found:?}, of the sources {expected:?}"));
                continue;
            }
            if matches!(planned.recipe, Recipe::First(_)) {
                done.unknown += 1;
                continue;
            }
            let Some(reader) = merged.reader(found) else { continue };
            let size = dtype.size_in_bytes();
            let mut theirs = Vec::new();
            let (mut at, mut differing) = (0, 0);
            self.stream(planned, dtype, |ours| {
                theirs.resize(ours.len(), 0);
                reader.read(at, &mut theirs)?;
                at += ours.len();
                if ours != theirs {
                    let pairs = ours.chunks(size).zip(theirs.chunks(size));
                    differing += pairs.filter(|(ours, theirs)| ours != theirs).count();
                }
                Ok(())
            })?;
            if differing == 0 {
                done.equal += 1;
                continue;
            }
            let all = planned.elements();
            done.differ(&planned.name, format!("{differing} of {all} elements are not those of the sources"));
        }
        let known: std::collections::BTreeSet<&str> =
            self.tensors.iter().map(|planned| planned.name.as_str()).collect();
        for key in merged.tensors.keys().filter(|key| !known.contains(key.as_str())) {
            done.differ(key, "the model has no such tensor".into());
        }
        Ok(done)
    }
}

impl Comparison {
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
