//! `packd inspect`: what a packed data set holds, for the eye.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use packd_sinks::METADATA_FOLDER;
use serde::Serialize;

use crate::error::Error;
use crate::packed_set::{
    DataSet, Layout, Member, PackedJson, find_tars, members_at, members_of, read_member,
};
use crate::verify::{Info, media_type, open_sqlite, whole_image};

/// A data set as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedSet {
    /// The shards, sorted.
    pub shards: Vec<InspectedShard>,
    /// Packed samples of all shards whose number is known.
    pub packs: u64,
    /// Bytes of all shards.
    pub bytes: u64,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedShard {
    /// Path relative to the folder.
    pub name: String,
    /// Bytes of the tar.
    pub bytes: u64,
    /// Packed samples, as `.info.json` or the `.tar.idx` says.
    pub packs: Option<u64>,
}

/// One packed sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedSample {
    /// Its key.
    pub key: String,
    /// The shard, relative to the folder.
    pub shard: String,
    /// Tokens, if the packed json says it.
    pub length: Option<u64>,
    /// Where each sub-sample starts, and the end.
    pub cu_lengths: Option<Vec<u64>>,
    /// The sub-samples.
    pub sub_samples: Vec<InspectedSubSample>,
    /// What is wrong with its json, if anything is.
    pub problems: Vec<String>,
}

/// One sub-sample.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedSubSample {
    /// The record's id.
    pub id: Option<String>,
    /// The input, and where the record starts in it.
    pub source: Option<(String, u64)>,
    /// Tokens.
    pub length: Option<u64>,
    /// The system turn (`sample_class: crude`).
    pub system: Option<String>,
    /// The user's turns.
    pub prompts: Vec<String>,
    /// The assistant's turns.
    pub captions: Vec<String>,
    /// The images.
    pub images: Vec<InspectedImage>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InspectedImage {
    /// Its member in the tar, after the key.
    pub part: String,
    /// Bytes; 0 if the member is missing.
    pub bytes: u64,
    /// What the bytes are.
    pub media_type: Option<&'static str>,
    /// Width and height in pixels.
    pub size: Option<(u32, u32)>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

/// The shards of a data set and their totals; no shard is opened.
///
/// # Errors
/// [`Error::DataSet`] for a folder that holds none.
pub fn inspect_set(folder: &Path) -> Result<InspectedSet, Error> {
    let layout = Layout::find(folder)?;
    let mut shards = Vec::new();
    for set in &layout.sets {
        let counts = counts(set);
        for name in find_tars(&set.path) {
            let path = set.path.join(&name);
            let packs = counts.get(&name).copied().or_else(|| packs_of_idx(&path));
            let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            shards.push(InspectedShard { name: format!("{}{name}", set.prefix), bytes, packs });
        }
    }
    let packs = shards.iter().filter_map(|shard| shard.packs).sum();
    let bytes = shards.iter().map(|shard| shard.bytes).sum();
    Ok(InspectedSet { shards, packs, bytes })
}

/// One packed sample by its key.
///
/// # Errors
/// [`Error::DataSet`] when no shard holds the key or its json cannot be read.
pub fn inspect_sample(folder: &Path, key: &str) -> Result<InspectedSample, Error> {
    let layout = Layout::find(folder)?;
    let wrong = |message: String, help| Error::DataSet { path: folder.to_owned(), message, help };
    let Some((shard, path, members)) = find(&layout, key) else {
        let help = "`packd inspect` without a key lists the shards; bins.parquet lists the keys";
        return Err(wrong(format!("no shard holds the key {key}"), help));
    };
    let help = "`packd verify` says what is wrong with the set";
    let tar = File::open(&path).map_err(|error| wrong(format!("{shard}: {error}"), help))?;
    let json = members.iter().find(|member| member.part == "json");
    let json = json.ok_or_else(|| wrong(format!("{shard}: {key} has no json"), help))?;
    let bytes = read_member(&tar, json.offset, json.size)
        .map_err(|error| wrong(format!("{shard}: the json of {key}: {error}"), help))?;
    let (packed, problems) = PackedJson::parse(&bytes)
        .map_err(|problem| wrong(format!("{shard}: {key}: {}", problem.detail), help))?;
    let sub_samples: Vec<InspectedSubSample> = (packed.sub_samples.into_iter().enumerate())
        .map(|(s, sub)| InspectedSubSample {
            images: (0..sub.images).map(|j| image(&tar, &members, format!("img{s}_{j}.jpg"))).collect(),
            id: sub.id,
            source: sub.source,
            length: sub.length,
            system: sub.system,
            prompts: sub.prompts,
            captions: sub.captions,
        })
        .collect();
    let length = sub_samples.iter().try_fold(0_u64, |sum, sub| Some(sum.saturating_add(sub.length?)));
    Ok(InspectedSample {
        key: key.to_owned(),
        shard,
        length,
        cu_lengths: packed.cu_lengths,
        sub_samples,
        problems: problems.into_iter().map(|problem| problem.detail).collect(),
    })
}

fn image(tar: &File, members: &[Member], part: String) -> InspectedImage {
    let mut image = InspectedImage { part, bytes: 0, media_type: None, size: None, problem: None };
    let Some(member) = members.iter().find(|member| member.part == image.part) else {
        image.problem = Some("the member is missing".into());
        return image;
    };
    image.bytes = member.size;
    let bytes = read_member(tar, member.offset, member.size).map_err(|error| error.to_string());
    let header = bytes.and_then(whole_image);
    match header {
        Ok(header) => {
            image.media_type = Some(media_type(header.format));
            image.size = Some((header.width, header.height));
        }
        Err(problem) => image.problem = Some(problem),
    }
    image
}

fn counts(set: &DataSet) -> BTreeMap<String, u64> {
    [".info.json", ".info.yaml"].into_iter().find_map(|name| Info::read(set, name)?.ok()).unwrap_or_default()
}

/// Packed samples by the size of the index: a u64 each, and one for the end.
fn packs_of_idx(tar: &Path) -> Option<u64> {
    let mut path = tar.as_os_str().to_owned();
    path.push(".idx");
    (std::fs::metadata(path).ok()?.len() / 8).checked_sub(1)
}

/// The shard of a key and the members of its sample: by the database, and by reading headers where it
/// does not help.
fn find(layout: &Layout, key: &str) -> Option<(String, PathBuf, Vec<Member>)> {
    let found = |set: &DataSet, name: &str, members: Vec<Member>| {
        (format!("{}{name}", set.prefix), set.path.join(name), members)
    };
    for set in &layout.sets {
        if let Some((name, members)) = look_up(set, key) {
            return Some(found(set, &name, members));
        }
    }
    for set in &layout.sets {
        for name in find_tars(&set.path) {
            match members_of(&set.path.join(&name), key) {
                Ok(members) if !members.is_empty() => return Some(found(set, &name, members)),
                _ => {}
            }
        }
    }
    None
}

fn look_up(set: &DataSet, key: &str) -> Option<(String, Vec<Member>)> {
    let connection = open_sqlite(&set.path.join(METADATA_FOLDER).join("index.sqlite")).ok()?;
    let query = "SELECT tar_file_id, byte_offset FROM samples WHERE sample_key = ?";
    let row = connection.query_row(query, [key], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
    let (id, offset) = row.ok()?;
    let name = counts(set).into_keys().nth(usize::try_from(id).ok()?)?;
    let members = members_at(&set.path.join(&name), u64::try_from(offset).ok()?, key).ok()?;
    (!members.is_empty()).then_some((name, members))
}
