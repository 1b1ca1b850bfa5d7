//! One folder of shards with its Energon files.

use std::collections::BTreeSet;

use packd_sinks::METADATA_FOLDER;
use rayon::prelude::*;

use super::context::Context;
use super::fault::FaultKind;
use super::info::Info;
use super::shard::{self, Shard};
use super::sqlite::Database;
use super::{dataset_yaml, split};
use crate::packed_set::{DataSet, find_tars};

pub(super) fn check(context: &Context<'_>, set: &DataSet) {
    let tars: BTreeSet<String> = find_tars(&set.path).into_iter().collect();
    if !set.path.join(METADATA_FOLDER).is_dir() {
        let file = format!("{}{METADATA_FOLDER}", set.prefix);
        context.faults.add(FaultKind::FileMissing, &file, "there is no such folder: `packd index` makes it");
        check_shards(context, set, &tars, &tars.iter().cloned().collect::<Vec<_>>(), &[], None);
        return;
    }
    let infos = Info::read_all(context, set);
    let listed: BTreeSet<String> = infos.iter().flat_map(|info| info.counts.keys().cloned()).collect();
    for missing in listed.difference(&tars) {
        let file = format!("{}{missing}", set.prefix);
        context.packs().unread.insert(base_name(missing).to_owned());
        context.faults.add(FaultKind::ShardMissing, &file, "Energon's files list it, and it is not there");
    }
    for info in &infos {
        for unlisted in tars.iter().filter(|tar| !info.counts.contains_key(*tar)) {
            let detail = format!("the shard {unlisted} is not listed, so nothing trains on it");
            context.faults.add(FaultKind::ShardUnlisted, &info.file, detail);
        }
    }
    let all: Vec<String> = tars.union(&listed).cloned().collect();
    split::check(context, set, &all);
    dataset_yaml::check(context, set);
    let database = Database::open(context, set);
    // A tar that nobody indexed has no number; one that only `.info.json` lost still has its own.
    let numbered = match &database {
        Some(database) if database.shards() == listed.len() as i64 => listed.into_iter().collect(),
        _ => all,
    };
    check_shards(context, set, &tars, &numbered, &infos, database.as_ref());
    if let Some(database) = database {
        database.check_strays(context, numbered.len());
    }
}

fn check_shards(
    context: &Context<'_>,
    set: &DataSet,
    tars: &BTreeSet<String>,
    numbered: &[String],
    infos: &[Info],
    database: Option<&Database>,
) {
    tars.par_iter().for_each(|name| {
        let path = set.path.join(name);
        let mut packs = context.packs();
        packs.shards.push(path.clone());
        let number = (packs.shards.len() - 1) as u32;
        drop(packs);
        let tar_file_id = numbered.binary_search(name).ok().map(|id| id as i64);
        let file = format!("{}{name}", set.prefix);
        shard::check(context, &Shard { name, file, path, number, tar_file_id }, infos, database);
    });
}

/// What stands after the last slash.
pub(super) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
