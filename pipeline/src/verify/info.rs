//! `.info.json` and `.info.yaml`: how many packed samples each shard holds.

use std::collections::BTreeMap;

use packd_sinks::METADATA_FOLDER;
use serde::Deserialize;

use super::context::Context;
use super::fault::FaultKind;
use crate::packed_set::DataSet;

/// One of the two files.
pub(crate) struct Info {
    /// Relative to the folder that is verified.
    pub(super) file: String,
    /// Packed samples by shard.
    pub(super) counts: BTreeMap<String, u64>,
}

/// Energon refuses any other key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(rename = "energon_version")]
    _energon_version: Option<String>,
    shard_counts: BTreeMap<String, u64>,
}

impl Info {
    /// The counts of one of the files, or why Energon cannot read it; `None` if it is not there.
    pub(crate) fn read(set: &DataSet, name: &str) -> Option<Result<BTreeMap<String, u64>, String>> {
        let text = match std::fs::read_to_string(set.path.join(METADATA_FOLDER).join(name)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return Some(Err(error.to_string())),
        };
        let content: Result<Content, String> = if name.ends_with("json") {
            serde_json::from_str(&text).map_err(|error| error.to_string())
        } else {
            serde_saphyr::from_str(&text).map_err(|error| error.to_string())
        };
        Some(content.map(|content| content.shard_counts))
    }

    /// Those that are there: Energon 5 and 6 read only the yaml, 7 reads either.
    pub(super) fn read_all(context: &Context<'_>, set: &DataSet) -> Vec<Self> {
        let mut infos = Vec::new();
        let mut found = false;
        for name in [".info.json", ".info.yaml"] {
            let Some(counts) = Self::read(set, name) else { continue };
            found = true;
            let file = format!("{}{METADATA_FOLDER}/{name}", set.prefix);
            match counts {
                Ok(counts) => infos.push(Self { file, counts }),
                Err(error) => {
                    context.faults.add(FaultKind::Info, &file, format!("Energon cannot read it: {error}"));
                }
            }
        }
        if !found {
            let file = format!("{}{METADATA_FOLDER}/.info.json", set.prefix);
            let detail = "neither it nor .info.yaml is there, so this is no data set to Energon: `packd index` writes both";
            context.faults.add(FaultKind::Info, &file, detail);
        }
        infos
    }
}
