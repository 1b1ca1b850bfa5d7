//! The members of one packed sample, read from its place in a tar.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tar::Archive;

/// The most bytes of one member that are read at once.
const MAX_MEMBER: u64 = 1 << 31;

/// One member of a packed sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name after the key and the dot.
    pub(crate) part: String,
    /// Where its content starts in the tar.
    pub(crate) offset: u64,
    /// Bytes of content.
    pub(crate) size: u64,
}

/// The members of the sample `key` whose first header stands at `offset`; none if it is another's.
pub(crate) fn members_at(tar: &Path, offset: u64, key: &str) -> io::Result<Vec<Member>> {
    let mut file = File::open(tar)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut members = Vec::new();
    for entry in Archive::new(file).entries_with_seek()? {
        let entry = entry?;
        let Some(part) = part_of(&entry.path_bytes(), key) else { break };
        members.push(Member {
            part,
            offset: offset.saturating_add(entry.raw_file_position()),
            size: entry.size(),
        });
    }
    Ok(members)
}

/// The members of the sample `key`, wherever it stands in the tar; only headers are read.
pub(crate) fn members_of(tar: &Path, key: &str) -> io::Result<Vec<Member>> {
    let mut members = Vec::new();
    for entry in Archive::new(File::open(tar)?).entries_with_seek()? {
        let entry = entry?;
        match part_of(&entry.path_bytes(), key) {
            Some(part) => {
                members.push(Member { part, offset: entry.raw_file_position(), size: entry.size() });
            }
            None if members.is_empty() => {}
            None => break,
        }
    }
    Ok(members)
}

fn part_of(name: &[u8], key: &str) -> Option<String> {
    let part = name.strip_prefix(key.as_bytes())?.strip_prefix(b".")?;
    Some(String::from_utf8_lossy(part).into_owned())
}

/// The content of a member.
pub(crate) fn read_member(tar: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    if size > MAX_MEMBER {
        return Err(io::Error::other(format!("a member of {size} bytes is too large to be read back")));
    }
    // A size is only a header's word; the file must have that much before memory is taken for it.
    let end = offset.checked_add(size).ok_or(io::ErrorKind::UnexpectedEof)?;
    if end > tar.metadata()?.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = vec![0; size as usize];
    tar.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
