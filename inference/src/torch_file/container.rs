//! The zip around a torch file: where each entry lies in the mapped file.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::{Deref, Range};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::error::{Result, TorchFileError};

/// The first bytes of torch's format before the zip: protocol 2, and a magic number as a long int of ten bytes.
const LEGACY: [u8; 14] = [0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const ZIP: &[u8] = b"PK\x03\x04";
/// Before that, torch wrote tars; this lies at byte 257.
const TAR: &[u8] = b"ustar";
/// The newest version of the container that torch itself reads.
const NEWEST: u32 = 10;

/// The bytes of a file.
pub(crate) enum Bytes {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file, which must not be cut while it is open.
    pub(crate) fn map(path: &Path) -> Result<Self> {
        let read = |source| TorchFileError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(read)?;
        // Mapping a folder or an empty file says nothing that helps.
        let data = file.metadata().map_err(read)?;
        if data.is_dir() {
            return Err(read(std::io::ErrorKind::IsADirectory.into()));
        }
        if data.len() == 0 {
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is only read. Someone who cuts a checkpoint while it is open gets a bus error, as with
        // every program that maps one; the documentation of `TorchFile::open` says so.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(read)?;
        Ok(Self::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// The entries of one torch file.
pub(super) struct Container {
    pub(super) bytes: Bytes,
    /// Name below the stem (`data.pkl`, `data/0`) to its place in the file, and its CRC-32 by the directory.
    entries: HashMap<String, (Range<usize>, u32)>,
}

impl Container {
    /// Finds the entries, and refuses what torch would not write.
    pub(super) fn new(bytes: Bytes, path: &Path) -> Result<Self> {
        let bad = |detail: String| TorchFileError::Container { path: path.to_owned(), detail };
        if bytes.starts_with(&LEGACY) || bytes.get(257..262) == Some(TAR) {
            return Err(TorchFileError::Legacy { path: path.to_owned() });
        }
        if !bytes.starts_with(ZIP) {
            return Err(bad("this is no torch file: it does not start as a zip".into()));
        }
        let damaged = |error: zip::result::ZipError| bad(format!("the zip is damaged or cut short: {error}"));
        let mut zip = ZipArchive::new(Cursor::new(&bytes[..])).map_err(damaged)?;
        if zip.has_duplicate_names() {
            return Err(bad("two entries of the zip have the same name".into()));
        }
        let end = zip.central_directory_start();
        let mut found: Vec<(String, Range<usize>, u32)> = Vec::with_capacity(zip.len());
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).map_err(damaged)?;
            let name = checked_name(entry.name_raw()).map_err(bad)?;
            if name.ends_with('/') && entry.size() == 0 {
                continue;
            }
            if entry.compression() != CompressionMethod::Stored || entry.size() != entry.compressed_size() {
                return Err(bad(format!(
                    "{name} is compressed; torch stores its entries as they are: unpack this zip and pack it again \
                     with zip -0"
                )));
            }
            if entry.encrypted() {
                return Err(bad(format!("{name} is encrypted")));
            }
            let start = entry.data_start().unwrap_or(u64::MAX);
            let place = start.checked_add(entry.size()).filter(|last| *last <= end);
            let place =
                place.and_then(|last| Some(usize::try_from(start).ok()?..usize::try_from(last).ok()?));
            let place = place.ok_or_else(|| bad(format!("{name} reaches beyond the zip's data")))?;
            found.push((name.to_owned(), place, entry.crc32()));
        }
        let stem = stem(found.iter().map(|(name, ..)| name.as_str())).map_err(bad)?;
        let below = |name: String| name.strip_prefix(&stem).map(str::to_owned);
        let entries = found.into_iter().filter_map(|(name, place, crc)| Some((below(name)?, (place, crc))));
        let container = Self { entries: entries.collect(), bytes };
        container.check_version(path)?;
        Ok(container)
    }

    fn check_version(&self, path: &Path) -> Result<()> {
        let bad = |detail: String| TorchFileError::Container { path: path.to_owned(), detail };
        if self.entries.contains_key("constants.pkl") {
            return Err(bad("this is a TorchScript program, not a checkpoint".into()));
        }
        match self.entry("byteorder") {
            // Torch before 2.1 did not say; it ran on little-endian machines.
            None | Some(b"little") => (),
            Some(b"big") => return Err(TorchFileError::BigEndian { path: path.to_owned() }),
            Some(_) => return Err(bad("its byte order is neither little nor big".into())),
        }
        let version = self
            .entry("version")
            .map(|text| std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<u32>().ok()));
        match version {
            None => Ok(()),
            Some(Some(version)) if version <= NEWEST => Ok(()),
            Some(Some(version)) => {
                Err(bad(format!("its container has version {version}, known is {NEWEST}")))
            }
            Some(None) => Err(bad("the version of its container is no number".into())),
        }
    }

    /// Where an entry lies.
    pub(super) fn place(&self, name: &str) -> Option<Range<usize>> {
        self.entries.get(name).map(|(place, _)| place.clone())
    }

    /// The bytes of an entry.
    pub(super) fn entry(&self, name: &str) -> Option<&[u8]> {
        // The places were checked against the length.
        self.place(name).map(|place| &self.bytes[place])
    }

    /// Entries whose bytes have another CRC-32 than the directory says, in order of their names.
    pub(super) fn damaged(&self) -> Vec<&str> {
        let differs =
            |(place, crc): &(Range<usize>, u32)| crc32fast::hash(&self.bytes[place.clone()]) != *crc;
        let mut names: Vec<&str> =
            self.entries.iter().filter(|(_, entry)| differs(entry)).map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }
}

/// Entries are never written to disk, but a name that would leave its folder shows a file made to harm.
fn checked_name(raw: &[u8]) -> std::result::Result<&str, String> {
    let shown = String::from_utf8_lossy(&raw[..raw.len().min(200)]);
    let name = std::str::from_utf8(raw).map_err(|_| format!("the zip's entry name {shown:?} is no UTF-8"))?;
    let mut parts = name.strip_suffix('/').unwrap_or(name).split('/');
    let harms = name.contains(['\\', '\0', ':']) || parts.any(|part| matches!(part, "" | "." | ".."));
    if harms { Err(format!("the zip's entry name {shown:?} is no plain path")) } else { Ok(name) }
}

/// The folder that all of a torch file's entries are in, with its slash: its name differs by writer.
fn stem<'a>(mut names: impl Iterator<Item = &'a str>) -> std::result::Result<String, String> {
    let stem = |name: &'a str| name.strip_suffix("data.pkl").filter(|stem| stem.ends_with('/'));
    let first = names.by_ref().find_map(stem);
    let first = first.ok_or("this is no torch file: the zip holds no data.pkl")?;
    match names.find_map(stem) {
        Some(second) => Err(format!("the zip holds two data.pkl, in {first} and in {second}")),
        None => Ok(first.to_owned()),
    }
}
