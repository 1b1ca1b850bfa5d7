//! `split.yaml`: every shard in one split.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use packd_sinks::METADATA_FOLDER;
use serde::Deserialize;

use super::braces::expand;
use super::context::Context;
use super::fault::FaultKind;
use crate::packed_set::DataSet;

/// Energon refuses any other key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    split_parts: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    exclude: Vec<String>,
}

/// The packed samples of the `train` and the `val` split, from the counts of each shard.
pub(crate) fn split_sizes(set: &DataSet, counts: &BTreeMap<String, u64>) -> Result<[u64; 2], String> {
    let path = set.path.join(METADATA_FOLDER).join("split.yaml");
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("split.yaml cannot be read: {error}"))?;
    let content: Content = serde_saphyr::from_str(&text).map_err(|error| format!("split.yaml: {error}"))?;
    let size = |split: &str| {
        let shards = content.split_parts.get(split).into_iter().flatten();
        let names = shards.filter_map(|expression| expand(expression)).flatten();
        names.filter_map(|name| counts.get(&name)).sum()
    };
    Ok([size("train"), size("val")])
}

/// `shards` are all that are there or listed, sorted.
pub(super) fn check(context: &Context<'_>, set: &DataSet, shards: &[String]) {
    let meta = set.path.join(METADATA_FOLDER);
    let name = if !meta.join("split.yaml").exists() && meta.join("split.json").exists() {
        "split.json"
    } else {
        "split.yaml"
    };
    let file = format!("{}{METADATA_FOLDER}/{name}", set.prefix);
    let fault = |detail: String| context.faults.add(FaultKind::Split, &file, detail);
    let text = match std::fs::read_to_string(meta.join(name)) {
        Ok(text) => text,
        Err(error) => return fault(format!("it cannot be read: {error}")),
    };
    let content: Content = match serde_saphyr::from_str(&text) {
        Ok(content) => content,
        Err(error) => return fault(format!("Energon cannot read it: {error}")),
    };
    let mut uses: HashMap<String, Vec<&str>> = HashMap::new();
    for (split, expressions) in &content.split_parts {
        for expression in expressions {
            let Some(names) = expand(expression) else {
                return fault(format!("{expression} expands to millions of names"));
            };
            for name in names {
                uses.entry(name).or_default().push(split);
            }
        }
    }
    if content.split_parts.get("train").is_none_or(Vec::is_empty) {
        fault("the split train is empty".into());
    }
    // What is left out on purpose is listed as well; `shard/key` leaves out one packed sample.
    let excluded: BTreeSet<String> =
        content.exclude.iter().filter_map(|expression| expand(expression)).flatten().collect();
    for shard in shards {
        match uses.remove(shard).as_deref() {
            None if excluded.contains(shard) => {}
            None => fault(format!("the shard {shard} is in no split")),
            Some([_]) => {}
            Some(splits) => {
                fault(format!("the shard {shard} is listed {} times: {}", splits.len(), splits.join(", ")))
            }
        }
    }
    let unknown: BTreeSet<&String> = uses.keys().collect();
    for shard in unknown {
        fault(format!("it lists {shard}, and there is no such shard"));
    }
}
