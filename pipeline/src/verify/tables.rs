//! The tables against the tars, and against each other: no sub-sample may be lost on the way.

use std::collections::HashMap;
use std::fs::File;

use parquet::errors::ParquetError;
use xxhash_rust::xxh3::xxh3_128;

use super::context::{Context, Digest, FoundPack};
use super::fault::FaultKind;
use super::table_rows::{BinsRow, TableRow, bins, lengths};
use crate::packed_set::{PackedJson, members_at, read_member};

const BINS: &str = "bins.parquet";
const LENGTHS: &str = "lengths.parquet";

/// Faults of one sort that are named one by one.
const NAMED: usize = 20;

/// Rows of a table, in a form that does not depend on their order.
#[derive(Default, PartialEq)]
struct Sum {
    rows: u64,
    hashes: u64,
}

impl Sum {
    fn add(&mut self, row: &TableRow) {
        self.rows += 1;
        self.hashes = self.hashes.wrapping_add(row.hash());
    }
}

pub(super) fn check(context: &Context<'_>) {
    // A table that is not what was written is a fault by itself (see `files`), and no witness.
    if context.checksums.is_none() || !context.is_intact(BINS) {
        return;
    }
    let mut in_bins = Sum::default();
    if let Err(error) = check_bins(context, &mut in_bins) {
        return context.faults.add(FaultKind::Table, BINS, format!("it cannot be read: {error}"));
    }
    report_unlisted(context);
    if !context.is_intact(LENGTHS) {
        return;
    }
    let mut in_lengths = Sum::default();
    let summed = lengths(&context.layout.folder.join(LENGTHS))
        .and_then(|mut rows| rows.try_for_each(|row| row.map(|row| in_lengths.add(&row))));
    let compared =
        summed.and_then(|()| if in_lengths == in_bins { Ok(()) } else { name_differences(context) });
    if let Err(error) = compared {
        context.faults.add(FaultKind::Table, LENGTHS, format!("it cannot be read: {error}"));
    }
}

/// Compares the packs of `bins.parquet` with those that the tars hold.
fn check_bins(context: &Context<'_>, sum: &mut Sum) -> Result<(), ParquetError> {
    let mut pack: Vec<BinsRow> = Vec::new();
    for row in bins(&context.layout.folder.join(BINS))? {
        let row = row?;
        sum.add(&row.sample);
        if pack.first().is_some_and(|first| first.key != row.key) {
            check_pack(context, &pack);
            pack.clear();
        }
        pack.push(row);
    }
    check_pack(context, &pack);
    Ok(())
}

fn check_pack(context: &Context<'_>, rows: &[BinsRow]) {
    let Some(first) = rows.first() else { return };
    check_starts(context, rows);
    let mut packs = context.packs();
    let Some(found) = packs.by_key.get_mut(&xxh3_128(first.key.as_bytes())) else {
        if !packs.unread.contains(&first.shard) {
            drop(packs);
            let detail = format!("{BINS} has it in {}, and no shard holds it", first.shard);
            context.faults.add_for_key(FaultKind::PackMissing, BINS, &first.key, detail);
        }
        return;
    };
    found.listed = true;
    let found = *found;
    drop(packs);
    let Some(in_tar) = found.digest else { return };
    let mut digest = Digest::new();
    for BinsRow { sample, .. } in rows {
        digest.add(sample.id.as_deref(), &sample.source, sample.offset, sample.length, sample.images);
    }
    if digest.finish() != in_tar {
        name_sub_samples(context, rows, found);
    }
}

/// Positions count up, and every sub-sample starts where the one before ended.
fn check_starts(context: &Context<'_>, rows: &[BinsRow]) {
    let mut start = 0;
    for (position, row) in rows.iter().enumerate() {
        if row.position != position as u64 || row.start != start {
            let detail = format!(
                "row {position} is position {} and starts at {}; it should start at {start}",
                row.position, row.start
            );
            return context.faults.add_for_key(FaultKind::Table, BINS, &row.key, detail);
        }
        start += row.sample.length;
    }
}

/// Says which sub-samples of a pack differ between `bins.parquet` and the tar.
fn name_sub_samples(context: &Context<'_>, rows: &[BinsRow], found: FoundPack) {
    let key = &rows[0].key;
    let shard = context.packs().shards[found.shard as usize].clone();
    let file = shard.strip_prefix(&context.layout.folder).unwrap_or(&shard).display().to_string();
    let fault = |detail: String| context.faults.add_for_key(FaultKind::SubSample, &file, key, detail);
    let packed = members_at(&shard, found.offset, key).and_then(|members| {
        let json = members.iter().find(|member| member.part == "json").ok_or(std::io::ErrorKind::NotFound)?;
        read_member(&File::open(&shard)?, json.offset, json.size)
    });
    let packed = packed.map_err(|error| error.to_string()).and_then(|bytes| {
        PackedJson::parse(&bytes).map(|(packed, _)| packed).map_err(|problem| problem.detail)
    });
    let packed = match packed {
        Ok(packed) => packed,
        Err(error) => return fault(format!("it differs from {BINS} and cannot be read again: {error}")),
    };
    let mut named = false;
    let mut in_tar: HashMap<(&str, u64), Vec<usize>> = HashMap::new();
    for (s, sub) in packed.sub_samples.iter().enumerate() {
        if let Some((source, offset)) = &sub.source {
            in_tar.entry((source, *offset)).or_default().push(s);
        }
    }
    for row in rows {
        let sample = &row.sample;
        let Some(s) = in_tar.get_mut(&(sample.source.as_str(), sample.offset)).and_then(Vec::pop) else {
            named = true;
            fault(format!("the sub-sample of {} is lost: {BINS} has it in this pack", sample.place()));
            continue;
        };
        let sub = &packed.sub_samples[s];
        for (what, found, listed) in [
            ("length", sub.length.unwrap_or(0), sample.length),
            ("number of images", sub.images as u64, sample.images),
        ] {
            if found != listed {
                named = true;
                fault(format!(
                    "sub-sample {s} has the {what} {found}; {BINS} says {listed} ({})",
                    sample.place()
                ));
            }
        }
        if sub.id != sample.id {
            named = true;
            fault(format!("sub-sample {s} has the id {:?}; {BINS} says {:?}", sub.id, sample.id));
        }
    }
    for s in in_tar.into_values().flatten() {
        named = true;
        fault(format!("sub-sample {s} is not in this pack of {BINS}"));
    }
    if !named {
        fault(format!("its sub-samples stand in another order than in {BINS}"));
    }
}

/// Packs of the tars that the table does not know.
fn report_unlisted(context: &Context<'_>) {
    let packs = context.packs();
    let mut unlisted: Vec<(String, u64)> = (packs.by_key.values().filter(|pack| !pack.listed))
        .map(|pack| (packs.shards[pack.shard as usize].display().to_string(), pack.offset))
        .collect();
    drop(packs);
    unlisted.sort_unstable();
    let more = unlisted.len().saturating_sub(NAMED);
    for (shard, offset) in unlisted.iter().take(NAMED) {
        let detail = format!("the packed sample at byte {offset} of {shard} is not in it");
        context.faults.add(FaultKind::Table, BINS, detail);
    }
    if more > 0 {
        context.faults.add(FaultKind::Table, BINS, format!("{more} further packed samples are not in it"));
    }
}

/// Says which samples differ between the two tables.
fn name_differences(context: &Context<'_>) -> Result<(), ParquetError> {
    let folder = &context.layout.folder;
    let mut listed: HashMap<u64, u64> = HashMap::new();
    let mut faults = Vec::new();
    for row in bins(&folder.join(BINS))? {
        let row = row?;
        if listed.insert(row.sample.ordinal, row.sample.hash()).is_some() {
            let detail = format!("sample {} ({}) is in two packs", row.sample.ordinal, row.sample.place());
            faults.push((BINS, detail));
        }
    }
    for row in lengths(&folder.join(LENGTHS))? {
        let row = row?;
        match listed.remove(&row.ordinal) {
            Some(hash) if hash == row.hash() => {}
            Some(_) => faults
                .push((BINS, format!("sample {} ({}) is not as in {LENGTHS}", row.ordinal, row.place()))),
            None => faults.push((BINS, format!("sample {} ({}) is in no pack", row.ordinal, row.place()))),
        }
        if faults.len() > NAMED {
            break;
        }
    }
    if faults.len() <= NAMED {
        let mut extra: Vec<u64> = listed.into_keys().collect();
        extra.sort_unstable();
        faults.extend(
            extra.iter().map(|ordinal| (LENGTHS, format!("sample {ordinal} of {BINS} is not in it"))),
        );
    }
    for (file, detail) in faults.into_iter().take(NAMED) {
        context.faults.add(FaultKind::Table, file, detail);
    }
    Ok(())
}
