//! Packed samples as they stand in WebDataset shards.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use packd_contracts::{Frames, ImageRef, Sample, read_positions};
use serde::Deserialize;
use serde_json::Value;

use crate::batch::SubSample;
use crate::encoder::Encoder;
use crate::error::{ModelError, Result};
use crate::pixels::decode;

/// Folders below the named one that are searched for tars.
const MAX_DEPTH: usize = 8;

/// One packed sample, not decoded.
pub struct RawPack {
    /// The tar and the key.
    pub name: String,
    /// Members by their name after the key.
    members: HashMap<String, Vec<u8>>,
}

/// The parts of the json that the training process reads, and packd's lengths.
#[derive(Deserialize)]
struct PackedJson {
    images: Vec<Vec<serde::de::IgnoredAny>>,
    prompts: Vec<Texts>,
    captions: Vec<Texts>,
    patch_positions: Option<Vec<Vec<Option<String>>>>,
    fps: Option<Vec<Value>>,
    timestamp_decimal: Option<Vec<Option<u32>>>,
    lengths: Option<Vec<usize>>,
    systems: Option<Vec<Option<String>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// The tars at `path`: itself, or those in the folder and below, in order of their names.
///
/// # Errors
/// [`ModelError::Read`] when it is not there or cannot be listed, [`ModelError::Shard`] when there are none.
pub fn find_shards(path: &Path) -> Result<Vec<PathBuf>> {
    let mut shards = Vec::new();
    if path.is_file() {
        shards.push(path.to_owned());
    } else {
        collect(path, MAX_DEPTH, &mut shards)?;
    }
    shards.sort();
    if shards.is_empty() {
        let detail = "there are no tars; name a shard, or the output folder of a run".into();
        return Err(ModelError::Shard { shard: path.display().to_string(), detail });
    }
    Ok(shards)
}

fn collect(folder: &Path, depth: usize, shards: &mut Vec<PathBuf>) -> Result<()> {
    let read = |source| ModelError::Read { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, shards)?;
        } else if path.extension().is_some_and(|extension| extension == "tar") {
            shards.push(path);
        }
    }
    Ok(())
}

/// Calls `each` with the packs of a shard in order until it returns `false`.
///
/// # Errors
/// [`ModelError::Read`] for one that cannot be opened, [`ModelError::Shard`] for a damaged one, and what `each` says.
pub fn each_pack(shard: &Path, mut each: impl FnMut(RawPack) -> Result<bool>) -> Result<bool> {
    let broken = |error: std::io::Error| ModelError::Shard {
        shard: shard.display().to_string(),
        detail: error.to_string(),
    };
    let mut pack: Option<(String, RawPack)> = None;
    let open = |source| ModelError::Read { path: shard.to_owned(), source };
    let mut archive = tar::Archive::new(std::io::BufReader::new(File::open(shard).map_err(open)?));
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.to_string_lossy().into_owned();
        let Some((key, part)) = split_key(&path) else { continue };
        if let Some((_, done)) = pack.take_if(|(known, _)| known != key)
            && !each(done)?
        {
            return Ok(false);
        }
        let (_, pack) = pack.get_or_insert_with(|| {
            let name = format!("{} {key}", shard.display());
            (key.to_owned(), RawPack { name, members: HashMap::new() })
        });
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(broken)?;
        pack.members.insert(part.to_owned(), bytes);
    }
    match pack {
        Some((_, last)) => each(last),
        None => Ok(true),
    }
}

/// WebDataset's rule: the key ends at the first dot of the file name.
fn split_key(path: &str) -> Option<(&str, &str)> {
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    let dot = path[name..].find('.')? + name;
    Some((&path[..dot], &path[dot + 1..]))
}

impl RawPack {
    /// The sub-samples in tokens and patches, checked against the lengths that they were packed by.
    ///
    /// # Errors
    /// [`ModelError::Shard`] with the sub-sample that cannot be used.
    pub fn sub_samples(&self, encoder: &Encoder) -> Result<Vec<SubSample>> {
        let wrong = |detail: String| ModelError::Shard { shard: self.name.clone(), detail };
        let json = self.members.get("json").ok_or_else(|| wrong("it has no json".into()))?;
        let packed: PackedJson = serde_json::from_slice(json).map_err(|error| wrong(error.to_string()))?;
        let count = packed.prompts.len();
        if packed.captions.len() != count || packed.images.len() != count {
            return Err(wrong("prompts, captions and images differ in number".into()));
        }
        let of_packd = [
            ("lengths", packed.lengths.as_ref().map(Vec::len)),
            ("systems", packed.systems.as_ref().map(Vec::len)),
            ("fps", packed.fps.as_ref().map(Vec::len)),
            ("timestamp_decimal", packed.timestamp_decimal.as_ref().map(Vec::len)),
            ("patch_positions", packed.patch_positions.as_ref().map(Vec::len)),
        ];
        for (name, found) in of_packd {
            if let Some(found) = found.filter(|found| *found != count) {
                return Err(wrong(format!("`prompts` is of {count} sub-samples, `{name}` of {found}")));
            }
        }
        let lengths = packed.lengths.unwrap_or_default();
        let mut subs = Vec::with_capacity(count);
        let turns = packed.prompts.into_iter().zip(packed.captions);
        for (s, ((prompts, captions), images)) in turns.zip(&packed.images).enumerate() {
            let in_sub = |error: ModelError| wrong(format!("sub-sample {s}: {error}"));
            let sample = Sample {
                system: packed.systems.as_ref().and_then(|systems| systems.get(s).cloned().flatten()),
                prompts: prompts.into_vec(),
                captions: captions.into_vec(),
                images: (0..images.len()).map(|j| ImageRef::Path(format!("img{s}_{j}.jpg"))).collect(),
                ..Sample::default()
            };
            let member = |j: usize, extension: &str| self.members.get(&format!("img{s}_{j}.{extension}"));
            let decoded = (0..images.len())
                .map(|j| {
                    let bytes = member(j, "jpg")
                        .ok_or_else(|| ModelError::Image(format!("there is no member img{s}_{j}.jpg")))?;
                    decode(bytes)
                })
                .collect::<Result<Vec<_>>>()
                .map_err(in_sub)?;
            let positions = (0..images.len())
                .map(|j| {
                    let names =
                        packed.patch_positions.as_ref().and_then(|all| all.get(s)?.get(j)?.as_deref());
                    let array = names.filter(|name| !name.is_empty()).and_then(|_| member(j, "npy"));
                    Ok(array.map(|bytes| read_positions(bytes)).transpose()?)
                })
                .collect::<Result<Vec<_>>>()
                .map_err(in_sub)?;
            let fps = packed.fps.as_ref().and_then(|fps| rate(fps.get(s)?));
            let timestamp_decimal = packed.timestamp_decimal.as_ref().and_then(|all| *all.get(s)?);
            let has_frames = fps.is_some() || positions.iter().any(Option::is_some);
            let frames = has_frames.then_some(Frames { positions, fps, timestamp_decimal });
            let sub = encoder.with_frames(&sample, &decoded, frames.as_ref()).map_err(in_sub)?;
            if let Some(&length) = lengths.get(s)
                && length != sub.input_ids.len()
            {
                return Err(wrong(format!(
                    "sub-sample {s} was packed as {length} tokens and has {}; give the tokenizer and profile that it \
                     was packed with (--tokenizer, --profile)",
                    sub.input_ids.len()
                )));
            }
            subs.push(sub);
        }
        Ok(subs)
    }
}

/// A frame rate is a number, or a list that starts with one.
fn rate(fps: &Value) -> Option<f64> {
    fps.as_array().map_or(Some(fps), |list| list.first())?.as_f64()
}
