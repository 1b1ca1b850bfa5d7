//! One shard: the tar, its `.tar.idx`, what Energon's files say of it, and its packs.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

use packd_sinks::{ShardCommit, ShardIndex, scan_shard};
use rayon::prelude::*;

use super::context::{Context, Identity};
use super::fault::FaultKind;
use super::info::Info;
use super::sample;
use super::set::base_name;
use super::sqlite::Database;
use crate::flow::write::commit_name;
use crate::state::node::Node;

/// A shard and where it stands.
pub(super) struct Shard<'a> {
    /// Relative to its data set.
    pub(super) name: &'a str,
    /// Relative to the folder that is verified.
    pub(super) file: String,
    pub(super) path: PathBuf,
    /// In the list of all shards.
    pub(super) number: u32,
    /// Its number in `index.sqlite`.
    pub(super) tar_file_id: Option<i64>,
}

pub(super) fn check(context: &Context<'_>, shard: &Shard<'_>, infos: &[Info], database: Option<&Database>) {
    let scanned = scan_shard(&shard.path).and_then(|index| {
        let file = File::open(&shard.path)
            .map_err(|source| packd_sinks::SinkError::Read { path: shard.path.clone(), source })?;
        Ok((index, file))
    });
    let (index, tar) = match scanned {
        Ok(scanned) => scanned,
        Err(error) => {
            context.packs().unread.insert(base_name(shard.name).to_owned());
            let path = format!("{}: ", shard.path.display());
            let detail = error.to_string();
            context.faults.add(
                FaultKind::TarDamaged,
                &shard.file,
                detail.strip_prefix(&path).unwrap_or(&detail),
            );
            return;
        }
    };
    let mut totals = context.totals();
    totals.shards += 1;
    totals.bytes += index.size;
    drop(totals);
    let identity = context.identity(&shard.file, &index.checksum);
    if let Identity::Of(other) = &identity {
        let detail = format!("it holds what was written as {other}");
        context.faults.add(FaultKind::ShardSwapped, &shard.file, detail);
    } else {
        check_idx(context, shard, &index);
        check_infos(context, shard, &index, infos);
        if let (Some(database), Some(id)) = (database, shard.tar_file_id) {
            database.check_shard(context, shard.name, id, &index);
        }
    }
    let written =
        if identity == Identity::Changed { written_samples(context, shard) } else { HashMap::new() };
    index.samples.par_iter().for_each(|found| {
        sample::check(context, shard, &tar, found, written.get(&found.key).copied());
    });
    if identity == Identity::Changed {
        context.packs().changed.insert(shard.file.clone());
    }
}

/// The checksum of every packed sample as it was written, by key; empty if the run's notes are gone.
fn written_samples(context: &Context<'_>, shard: &Shard<'_>) -> HashMap<String, u64> {
    let Some(output) = &context.layout.run_of else { return HashMap::new() };
    let folders = shard.path.ancestors().filter_map(|path| path.file_name()?.to_str());
    let node = folders.into_iter().find_map(Node::of_path).unwrap_or(Node(0));
    let Ok(text) = std::fs::read(output.join(commit_name(node, base_name(shard.name)))) else {
        return HashMap::new();
    };
    let Ok(commit) = serde_json::from_slice::<ShardCommit>(&text) else { return HashMap::new() };
    commit.index.samples.into_iter().map(|sample| (sample.key, sample.checksum)).collect()
}

fn check_idx(context: &Context<'_>, shard: &Shard<'_>, index: &ShardIndex) {
    let file = format!("{}.idx", shard.file);
    let mut path = shard.path.clone().into_os_string();
    path.push(".idx");
    let fault = |detail: String| context.faults.add(FaultKind::TarIdx, &file, detail);
    let found = match std::fs::read(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return fault("it is missing: `packd index` writes it".into());
        }
        Err(error) => return fault(format!("it cannot be read: {error}")),
    };
    let expected = index.tar_idx();
    if found == expected {
        return;
    }
    if found.len() != expected.len() {
        let entries = expected.len() / 8;
        return fault(format!("it has {} bytes; {entries} offsets take {}", found.len(), expected.len()));
    }
    let pairs = found.chunks_exact(8).zip(expected.chunks_exact(8)).enumerate();
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    for (entry, (found, expected)) in pairs.filter(|(_, (found, expected))| found != expected) {
        let what = index.samples.get(entry).map_or("the end", |sample| sample.key.as_str());
        fault(format!("entry {entry} ({what}) is {}, the tar has it at {}", number(found), number(expected)));
    }
}

fn check_infos(context: &Context<'_>, shard: &Shard<'_>, index: &ShardIndex, infos: &[Info]) {
    let samples = index.samples.len() as u64;
    for info in infos {
        if let Some(&count) = info.counts.get(shard.name).filter(|&&count| count != samples) {
            let detail =
                format!("it says that {} holds {count} packed samples; it holds {samples}", shard.name);
            context.faults.add(FaultKind::Info, &info.file, detail);
        }
    }
}
