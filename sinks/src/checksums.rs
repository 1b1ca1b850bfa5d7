//! Checksums of everything the output promises, in the format of `xxh128sum`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::{SinkError, write_file};

/// The XXH3-128 of a file, as 32 hexadecimal digits.
///
/// # Errors
/// [`SinkError::Read`].
pub fn hash_file(path: &Path) -> Result<String, SinkError> {
    let mut file = File::open(path).map_err(SinkError::read(path))?;
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer).map_err(SinkError::read(path))? {
            0 => return Ok(hex128(hash.digest128())),
            n => hash.update(&buffer[..n]),
        }
    }
}

pub(crate) fn hex128(digest: u128) -> String {
    format!("{digest:032x}")
}

/// A list of files and their checksums; `xxh128sum -c` in the list's folder finds a flipped bit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checksums(BTreeMap<String, String>);

impl Checksums {
    /// The list's usual name, at the top level of an output.
    pub const FILE_NAME: &str = "checksums.xxh128";

    /// Adds a file by its path relative to the list (with `/`) and its XXH3-128 ([`hash_file`]).
    pub fn add(&mut self, path: impl Into<String>, checksum: impl Into<String>) {
        self.0.insert(path.into(), checksum.into());
    }

    /// The checksum of a file.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// (path, checksum), sorted by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, checksum)| (path.as_str(), checksum.as_str()))
    }

    /// Writes the list: a line a file, sorted by path.
    ///
    /// # Errors
    /// [`SinkError::Create`] or [`SinkError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), SinkError> {
        let lines: String = self.0.iter().map(|(path, checksum)| format!("{checksum}  {path}\n")).collect();
        write_file(path, lines.as_bytes())
    }

    /// Reads a list that [`write`](Self::write) or `xxh128sum` wrote.
    ///
    /// # Errors
    /// [`SinkError::Read`], also when a line is not `<32 hexadecimal digits>  <path>`.
    pub fn read(path: &Path) -> Result<Self, SinkError> {
        let text = fs::read_to_string(path).map_err(SinkError::read(path))?;
        let mut list = Self::default();
        for (i, line) in text.lines().enumerate() {
            let entry = line
                .split_once("  ")
                .filter(|(sum, _)| sum.len() == 32 && sum.bytes().all(|b| b.is_ascii_hexdigit()));
            let Some((checksum, name)) = entry else {
                let detail = format!("line {} is not `<32 hexadecimal digits>  <path>`", i + 1);
                return Err(SinkError::read(path)(std::io::Error::other(detail)));
            };
            list.add(name, checksum);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_wrote_and_uses_the_canonical_digits() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("empty"), "").unwrap();
        // The published XXH3-128 of no bytes.
        assert_eq!(hash_file(&folder.path().join("empty")).unwrap(), "99aa06d3014798d86001c324468d497f");
        let mut list = Checksums::default();
        list.add("b/x.tar", "0".repeat(32));
        list.add("a b", "99aa06d3014798d86001c324468d497f");
        let path = folder.path().join(Checksums::FILE_NAME);
        list.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("99aa06d3014798d86001c324468d497f  a b\n"), "{text}");
        assert_eq!(Checksums::read(&path).unwrap(), list);
        fs::write(&path, "short  a\n").unwrap();
        assert!(Checksums::read(&path).unwrap_err().to_string().contains("line 1"));
    }
}
