//! `run/job.json`: which job an output folder holds, and how it is shared by the nodes.

use std::path::{Path, PathBuf};

use packd_sinks::{AtomicFile, create_folder};
use packd_sources::{Input, Part};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;

/// The version of what a run keeps and writes; another version cannot continue a run.
const FORMAT: u32 = 2;

/// Everything that decides the bytes of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobFile {
    format: u32,
    /// The options, without those that only decide how a run goes.
    pub(crate) config: Map<String, Value>,
    /// The input files.
    pub(crate) inputs: Vec<Input>,
    /// How samples are counted.
    pub(crate) counter: Value,
    /// The slice of the input that each node measures. It follows from the inputs and the number of nodes.
    #[serde(default)]
    pub(crate) slices: Vec<Vec<Part>>,
    /// The folder that relative paths of the inputs start from.
    #[serde(default)]
    pub(crate) planned_in: PathBuf,
}

impl JobFile {
    /// The path below an output folder.
    pub(crate) const NAME: &str = "run/job.json";

    pub(crate) fn new(
        config: Map<String, Value>,
        inputs: Vec<Input>,
        counter: Value,
        slices: Vec<Vec<Part>>,
    ) -> Self {
        let planned_in = std::env::current_dir().unwrap_or_default();
        Self { format: FORMAT, config, inputs, counter, slices, planned_in }
    }

    pub(crate) fn read(output: &Path) -> Result<Self, Error> {
        let path = output.join(Self::NAME);
        let state = |message: String| Error::State { path: path.clone(), message };
        let text = std::fs::read(&path).map_err(|error| state(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| state(error.to_string()))
    }

    /// Whether an output folder may be used: a new or empty one, or one that holds the same job.
    pub(crate) fn check(&self, output: &Path) -> Result<(), Error> {
        if output.join(Self::NAME).exists() {
            return match self.difference(&Self::read(output)?) {
                None => Ok(()),
                Some(what) => Err(Error::OtherJob { path: output.to_owned(), what }),
            };
        }
        let foreign = std::fs::read_dir(output).is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "run"))
        });
        if output.join(Self::NAME).exists() {
            // Another node claimed the folder just now.
            return self.check(output);
        }
        if foreign || output.is_file() {
            return Err(Error::NotAnOutput { path: output.to_owned() });
        }
        Ok(())
    }

    /// Checks the folder and claims it for this job, before or after other nodes of the same job.
    pub(crate) fn claim(&self, output: &Path) -> Result<(), Error> {
        self.check(output)?;
        let path = output.join(Self::NAME);
        if path.exists() {
            return Ok(());
        }
        create_folder(&output.join("run"))?;
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::State { path: path.clone(), message: error.to_string() })?;
        let mut file = AtomicFile::create(path)?;
        file.put(&text)?;
        if file.commit_new()? { Ok(()) } else { self.check(output) }
    }

    /// The first thing that differs from what the folder holds, by name.
    fn difference(&self, found: &Self) -> Option<String> {
        if self.format != found.format {
            return Some(format!("its format is {}, this packd writes {}", found.format, self.format));
        }
        for (key, value) in &self.config {
            let old = found.config.get(key).unwrap_or(&Value::Null);
            if old != value {
                return Some(format!("`{key}` was {old}, now {value}"));
            }
        }
        if let Some(key) = found.config.keys().find(|key| !self.config.contains_key(*key)) {
            return Some(format!("`{key}` is no option any more"));
        }
        for (old, new) in found.inputs.iter().zip(&self.inputs) {
            if old.name != new.name {
                return Some(format!("input {} was {}", new.name, old.name));
            }
            if old.size != new.size {
                return Some(format!("input {} had {} bytes, now {}", new.name, old.size, new.size));
            }
            if old.modified != new.modified {
                return Some(format!("input {} was changed since", new.name));
            }
        }
        if found.inputs.len() != self.inputs.len() {
            return Some(format!("it had {} input files, now {}", found.inputs.len(), self.inputs.len()));
        }
        if found.counter != self.counter {
            return Some(counter_difference(&found.counter, &self.counter));
        }
        None
    }
}

fn counter_difference(old: &Value, new: &Value) -> String {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
        return "the model differs".to_owned();
    };
    let key = new.keys().chain(old.keys()).find(|key| old.get(*key) != new.get(*key));
    key.map_or_else(|| "the model differs".to_owned(), |key| format!("the model's `{key}` differs"))
}
