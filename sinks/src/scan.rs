//! The index of a tar that exists, as Energon's own `prepare` would make it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use tar::{Archive, EntryType};
use xxhash_rust::xxh3::Xxh3;

use crate::checksums::hex128;
use crate::ustar::BLOCK;
use crate::{IndexedSample, Part, ShardIndex, SinkError};

/// Reads a whole tar, also one with PAX or GNU headers, and derives its index and checksums.
///
/// Members are grouped as Energon groups them: neighbours with the same name up to the first dot after
/// the last slash are one sample; folders, links, `__x__` names and names without a dot are left out.
/// The index is named after the file; for a tar in a subfolder of a data set the caller sets
/// [`ShardIndex::name`] to its path relative to the data set.
///
/// # Errors
/// [`SinkError::Read`]; [`SinkError::Tar`] for a tar that is cut off, damaged, compressed or empty.
pub fn scan_shard(path: &Path) -> Result<ShardIndex, SinkError> {
    let mut file = File::open(path).map_err(SinkError::read(path))?;
    let size = file.metadata().map_err(SinkError::read(path))?.len();
    let (mut samples, content_end) = read_headers(path, &file, size)?;
    if samples.is_empty() {
        return Err(tar_error(path, "the tar holds no samples"));
    }
    let ends: Vec<u64> = samples.iter().skip(1).map(|s| s.offset).chain([content_end]).collect();
    for (sample, end) in samples.iter_mut().zip(ends) {
        sample.size = end - sample.offset;
    }
    let checksum = hash(path, &mut file, &mut samples, content_end)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ShardIndex { name, size, checksum, content_end, samples })
}

/// The samples (sizes and checksums still 0) and where the last member ends.
fn read_headers(path: &Path, file: &File, size: u64) -> Result<(Vec<IndexedSample>, u64), SinkError> {
    let damaged = |e: std::io::Error| tar_error(path, format!("not a readable tar: {e}"));
    let mut samples: Vec<IndexedSample> = Vec::new();
    let mut member_start = 0;
    let mut archive = Archive::new(file);
    for entry in archive.entries_with_seek().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        // Extended headers belong to their member: it starts where the one before ended.
        let start = member_start;
        let (offset, content) = (entry.raw_file_position(), entry.size());
        let end = offset.checked_add(content).and_then(|end| end.checked_next_multiple_of(BLOCK));
        let name = entry.path_bytes();
        let Ok(name) = std::str::from_utf8(&name) else {
            return Err(tar_error(path, format!("member name {} is not UTF-8", name.escape_ascii())));
        };
        match end {
            Some(end) if end <= size => member_start = end,
            _ => return Err(tar_error(path, format!("the tar is cut off within {name}"))),
        }
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::GNUSparse => {
                return Err(tar_error(path, format!("{name} is stored as a sparse file")));
            }
            _ => continue,
        }
        let Some((key, part)) = split_name(name) else { continue };
        if samples.last().is_none_or(|last| last.key != key) {
            samples.push(IndexedSample {
                key: key.into(),
                offset: start,
                size: 0,
                checksum: 0,
                parts: Vec::new(),
            });
        }
        if let Some(sample) = samples.last_mut() {
            sample.parts.push(Part { name: part.into(), offset, size: content });
        }
    }
    Ok((samples, member_start))
}

/// Fills in the samples' checksums and returns the file's; also checks that the tar ends as a tar.
fn hash(
    path: &Path,
    file: &mut File,
    samples: &mut [IndexedSample],
    content_end: u64,
) -> Result<String, SinkError> {
    file.seek(SeekFrom::Start(0)).map_err(SinkError::read(path))?;
    let mut whole = Xxh3::new();
    let mut buffer = vec![0; 256 << 10];
    let mut skip = samples.first().map_or(0, |s| s.offset);
    span(path, file, &mut buffer, &mut skip, |bytes| whole.update(bytes))?;
    for sample in samples {
        let mut own = Xxh3::new();
        let mut left = sample.size;
        span(path, file, &mut buffer, &mut left, |bytes| {
            whole.update(bytes);
            own.update(bytes);
        })?;
        sample.checksum = own.digest();
    }
    let mut rest = u64::MAX;
    let mut zeros = true;
    span(path, file, &mut buffer, &mut rest, |bytes| {
        whole.update(bytes);
        zeros &= bytes.iter().all(|&b| b == 0);
    })?;
    if u64::MAX - rest < 2 * BLOCK {
        return Err(tar_error(
            path,
            format!("the tar has no end marker after byte {content_end}: it is cut off"),
        ));
    }
    if !zeros {
        let detail =
            format!("the tar goes on after its end marker at byte {content_end}; readers stop there");
        return Err(tar_error(path, detail));
    }
    Ok(hex128(whole.digest128()))
}

/// Reads up to `left` bytes, less only at the end of the file; what is then missing stays in `left`.
fn span(
    path: &Path,
    file: &mut File,
    buffer: &mut [u8],
    left: &mut u64,
    mut take: impl FnMut(&[u8]),
) -> Result<(), SinkError> {
    while *left > 0 {
        let n = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        match file.read(&mut buffer[..n]).map_err(SinkError::read(path))? {
            0 => break,
            n => {
                take(&buffer[..n]);
                *left -= n as u64;
            }
        }
    }
    Ok(())
}

/// Key and part of a member name, by Energon's rule `^((?:.*/|)[^.]+)[.]([^/]*)$`; `None` for names it skips.
fn split_name(name: &str) -> Option<(&str, &str)> {
    let first = name.split('/').next()?;
    if first.len() >= 4 && first.starts_with("__") && first.ends_with("__") {
        return None;
    }
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    let key = &name[..dot];
    if dot == base {
        // A hidden file: the rule then takes the folder's name, if that has no dot, as the key.
        let folder = key.strip_suffix('/')?;
        if folder.rsplit('/').next()?.contains('.') {
            return None;
        }
    }
    Some((key, &name[dot + 1..]))
}

fn tar_error(path: &Path, detail: impl Into<String>) -> SinkError {
    SinkError::Tar { path: path.into(), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tar::{Builder, Header};

    use super::*;

    #[test]
    fn names_split_as_energon_splits_them() {
        for (name, want) in [
            ("a.json", Some(("a", "json"))),
            ("x.y/a.b.c", Some(("x.y/a", "b.c"))),
            ("./a.jpg", Some(("./a", "jpg"))),
            ("a", None),
            (".hidden", None),
            ("d/.hidden", Some(("d/", "hidden"))),
            ("x.y/.hidden", None),
            ("__meta__", None),
            ("__meta__/a.json", None),
            ("__a__.json", Some(("__a__", "json"))),
            ("a.b/c", None),
        ] {
            assert_eq!(split_name(name), want, "{name}");
        }
    }

    /// A GNU tar with a folder, a long name, a skipped name and two samples.
    fn foreign() -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        let mut add = |name: &str, content: &[u8], kind: EntryType| {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_entry_type(kind);
            tar.append_data(&mut header, name, content).unwrap();
        };
        add("d/", b"", EntryType::Directory);
        add("d/a.jpg", &[1; 700], EntryType::Regular);
        add("d/a.json", b"{}", EntryType::Regular);
        add("__skip__", b"x", EntryType::Regular);
        add(&format!("d/{}.json", "b".repeat(120)), b"{}", EntryType::Regular);
        tar.into_inner().unwrap()
    }

    #[test]
    fn a_foreign_tar() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.tar");
        let bytes = foreign();
        fs::write(&path, &bytes).unwrap();
        let index = scan_shard(&path).unwrap();
        assert_eq!(index.name, "f.tar");
        assert_eq!(index.size, bytes.len() as u64);
        assert_eq!(index.samples.len(), 2);
        let [a, b] = &index.samples[..] else { panic!() };
        assert_eq!((a.key.as_str(), a.offset), ("d/a", 512));
        assert_eq!(a.parts[0], Part { name: "jpg".into(), offset: 1024, size: 700 });
        // Header, two blocks, header, one block, then the skipped member's two.
        assert_eq!(a.size, 512 + 1024 + 512 + 512 + 1024);
        // The long name takes a header and one block before the member's own header.
        assert_eq!((b.offset, b.parts[0].offset), (4096, 4096 + 3 * 512));
        assert_eq!(index.content_end, 4096 + 4 * 512);
        assert_eq!(a.checksum, xxhash_rust::xxh3::xxh3_64(&bytes[512..4096]));
        assert_eq!(index.checksum, crate::hash_file(&path).unwrap());
    }

    #[test]
    fn a_damaged_tar_is_an_error_that_says_how() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.tar");
        let bytes = foreign();
        let scan = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            scan_shard(&path).unwrap_err().to_string()
        };
        assert!(scan(&bytes[..1200]).contains("cut off within d/a.jpg"));
        assert!(scan(&bytes[..4096]).contains("no end marker after byte 4096"));
        assert!(scan(&[bytes.clone(), bytes.clone()].concat()).contains("goes on after its end marker"));
        let mut broken = bytes.clone();
        broken[512 + 3] ^= 1;
        assert!(scan(&broken).contains("not a readable tar"));
        assert!(scan(&[0; 10_240]).contains("holds no samples"));
        assert!(scan(b"\x1f\x8b\x08\0\0").contains("f.tar"));
    }
}
