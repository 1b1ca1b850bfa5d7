//! `run/job.json`: which job an output folder holds, and how it is shared by the nodes.

use std::path::PathBuf;

use packd_sources::{Input, Part};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::output::Output;

/// The version of what a run keeps and writes; another version cannot continue a run.
const FORMAT: u32 = 3;

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

    /// The job that an output holds; `None` if there is none.
    pub(crate) fn find(output: &Output) -> Result<Option<Self>, Error> {
        let state = |message: String| Error::State { path: output.shown(Self::NAME), message };
        let text = output.read(Self::NAME)?;
        text.map(|text| serde_json::from_slice(&text).map_err(|error| state(error.to_string()))).transpose()
    }

    /// The job that an output holds.
    pub(crate) fn read(output: &Output) -> Result<Self, Error> {
        let message = || "no such file: the folder holds no run".to_owned();
        Self::find(output)?.ok_or_else(|| Error::State { path: output.shown(Self::NAME), message: message() })
    }

    /// Whether an output folder may be used: a new or empty one, or one that holds the same job.
    pub(crate) fn check(&self, output: &Output) -> Result<(), Error> {
        if let Some(found) = Self::find(output)? {
            return match self.difference(&found) {
                None => Ok(()),
                Some(what) => Err(Error::OtherJob { path: output.name().to_owned(), what }),
            };
        }
        let foreign = output.holds_other_than("run")?;
        if output.exists(Self::NAME)? {
            // Another node claimed the folder just now.
            return self.check(output);
        }
        if foreign {
            return Err(Error::NotAnOutput { path: output.name().to_owned() });
        }
        Ok(())
    }

    /// Checks the folder and claims it for this job, before or after other nodes of the same job.
    pub(crate) fn claim(&self, output: &Output) -> Result<(), Error> {
        self.check(output)?;
        if output.exists(Self::NAME)? {
            return Ok(());
        }
        output.create_folder("run")?;
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::State { path: output.shown(Self::NAME), message: error.to_string() })?;
        if output.write_new(Self::NAME, &text)? { Ok(()) } else { self.check(output) }
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
