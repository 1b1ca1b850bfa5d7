//! `rejects.jsonl`: every record that was not packed, and why.

use std::io::{BufWriter, Write};
use std::path::Path;

use packd_contracts::Reason;
use serde::{Deserialize, Serialize};

use crate::{AtomicFile, SinkError};

/// One record that was not packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The input, as configured.
    pub source: String,
    /// The record's line, from 1.
    pub line: u64,
    /// Where the record starts in the (decompressed) input, in bytes.
    pub byte_offset: u64,
    /// The record's `id`, when it could be read.
    pub id: Option<String>,
    /// The stable reason code.
    pub reason: Reason,
    /// What was found. For people.
    pub detail: String,
}

/// Writes rejects in the order they are given, one JSON object a line.
#[derive(Debug)]
pub struct RejectsWriter {
    file: BufWriter<AtomicFile>,
    rejects: u64,
}

impl RejectsWriter {
    /// Starts the file; it appears at [`finish`](Self::finish), also when it is empty.
    ///
    /// # Errors
    /// [`SinkError::Create`].
    pub fn create(path: &Path) -> Result<Self, SinkError> {
        Ok(Self { file: BufWriter::new(AtomicFile::create(path)?), rejects: 0 })
    }

    /// Writes one line.
    ///
    /// # Errors
    /// [`SinkError::Write`].
    pub fn push(&mut self, reject: &Reject) -> Result<(), SinkError> {
        let written = serde_json::to_writer(&mut self.file, reject).map_err(std::io::Error::from);
        let written = written.and_then(|()| self.file.write_all(b"\n"));
        written.map_err(SinkError::write(self.file.get_ref().target()))?;
        self.rejects += 1;
        Ok(())
    }

    /// Syncs and renames the file; the number of rejects in it.
    ///
    /// # Errors
    /// [`SinkError::Write`].
    pub fn finish(mut self) -> Result<u64, SinkError> {
        self.file.flush().map_err(SinkError::write(self.file.get_ref().target()))?;
        let (file, _) = self.file.into_parts();
        file.commit()?;
        Ok(self.rejects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_reject_with_its_keys_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rejects.jsonl");
        let mut rejects = RejectsWriter::create(&path).unwrap();
        let reject = Reject {
            source: "d.jsonl".into(),
            line: 4,
            byte_offset: 99,
            id: None,
            reason: Reason::ImageMissing,
            detail: "é.jpg\nnot there".into(),
        };
        rejects.push(&reject).unwrap();
        rejects.push(&Reject { id: Some("7".into()), ..reject.clone() }).unwrap();
        assert!(!path.exists());
        assert_eq!(rejects.finish().unwrap(), 2);
        let text = std::fs::read_to_string(&path).unwrap();
        let first = r#"{"source":"d.jsonl","line":4,"byte_offset":99,"id":null,"reason":"image-missing","detail":"é.jpg\nnot there"}"#;
        assert_eq!(text.lines().next().unwrap(), first);
        assert_eq!(serde_json::from_str::<Reject>(first).unwrap(), reject);
        assert_eq!(text.lines().count(), 2);
    }
}
