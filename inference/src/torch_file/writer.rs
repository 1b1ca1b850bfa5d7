//! Writing torch files, one tensor at a time.

use std::fs::File;
use std::io::{BufWriter, Cursor, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::encode::{Planned, PyValue, TensorSpec, encode};
use super::error::{Result, TorchFileError};

/// torch puts every entry's data at a multiple of this, so that mapped tensors are aligned.
const ALIGNMENT: u16 = 64;
/// The extra field that torch fills the gap with: "FB".
const PADDING: u16 = 0x4246;
/// Zip entries from this size on, less some for headers, have 64-bit sizes.
const LARGE: u64 = u32::MAX as u64 - 1024;
const BUFFER: usize = 1 << 20;

/// Writes one torch file. The pickle is written first, from a description of all that will be in the file; then the
/// bytes of its tensors are handed over one after another. Nothing is kept of them, so memory stays at one buffer.
///
/// The file is written under a temporary name beside its own, and renamed by [`finish`](Self::finish); dropping the
/// writer before leaves nothing. It is not synced to the disk. The same values give the same bytes. torch reads it with
/// `weights_only=True` as long as neither [`PyValue::BytesIo`] nor another style of attributes than the default is in it.
pub struct TorchFileWriter {
    path: PathBuf,
    hidden: TempPath,
    archive: Archive<BufWriter<File>>,
}

impl TorchFileWriter {
    /// Starts a file that holds `value`.
    ///
    /// # Errors
    /// [`TorchFileError::Write`] when the file is there already or its folder cannot be written;
    /// [`TorchFileError::Unwritable`] for values that cannot be.
    pub fn create(path: &Path, value: &PyValue) -> Result<Self> {
        let failed = |source| TorchFileError::Write { path: path.to_owned(), source };
        if path.exists() {
            return Err(failed(ErrorKind::AlreadyExists.into()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        builder.prefix(".").suffix(".tmp");
        #[cfg(unix)]
        {
            // Readable by others, less the umask, as files are that programs write.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let (file, hidden) = builder.tempfile_in(folder).map_err(failed)?.into_parts();
        // The entries are in a folder of the file's name, as torch does it.
        let plain =
            |name: &&str| !name.is_empty() && !name.starts_with('.') && !name.contains(['\\', ':', '\0']);
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(plain).unwrap_or("archive");
        let archive = Archive::start(BufWriter::with_capacity(BUFFER, file), stem, value);
        Ok(Self { path: path.to_owned(), hidden, archive: archive.map_err(|fault| fault.named(path))? })
    }

    /// The tensor whose bytes come next.
    pub fn next_tensor(&self) -> Option<&TensorSpec> {
        self.archive.tensors.get(self.archive.done).map(|planned| &planned.spec)
    }

    /// Writes the next tensor: its elements in row-major order, little-endian.
    ///
    /// # Errors
    /// [`TorchFileError::Unwritable`] when no tensor is left or it has another number of bytes.
    pub fn tensor(&mut self, bytes: &[u8]) -> Result<()> {
        self.tensor_from(&mut &*bytes, bytes.len())
    }

    /// Writes the next tensor from a reader of `bytes` bytes, through a small buffer.
    ///
    /// # Errors
    /// As [`TorchFileWriter::tensor`]; also [`TorchFileError::Write`] when the reader fails or ends early.
    pub fn tensor_from(&mut self, reader: &mut dyn Read, bytes: usize) -> Result<()> {
        self.archive.tensor(reader, bytes).map_err(|fault| fault.named(&self.path))
    }

    /// Ends the file and gives it its name.
    ///
    /// # Errors
    /// [`TorchFileError::Unwritable`] when tensors are missing, [`TorchFileError::Write`].
    pub fn finish(self) -> Result<()> {
        let path = self.path;
        let failed = |source| TorchFileError::Write { path: path.clone(), source };
        let written = self.archive.finish().map_err(|fault| fault.named(&path))?;
        let file = written.into_inner().map_err(|error| failed(error.into_error()))?;
        // Network file systems and quotas may only now say that there is no room, and dropping a file tells nobody.
        nix::unistd::close(file).map_err(|error| failed(error.into()))?;
        self.hidden.persist_noclobber(&path).map_err(|error| failed(error.error))
    }
}

/// The bytes of a torch file that holds `value`, all of whose tensors have their bytes: as `torch.save` into an
/// `io.BytesIO`.
///
/// # Errors
/// [`TorchFileError::Unwritable`].
pub fn to_bytes(value: &PyValue) -> Result<Vec<u8>> {
    let name = Path::new("a torch file in memory");
    let archive = Archive::start(Cursor::new(Vec::new()), "archive", value);
    let done = archive.and_then(Archive::finish).map_err(|fault| fault.named(name))?;
    Ok(done.into_inner())
}

/// A fault that does not know its file yet.
enum Fault {
    Io(std::io::Error),
    Unwritable(String),
}

impl Fault {
    fn named(self, path: &Path) -> TorchFileError {
        let path = path.to_owned();
        match self {
            Self::Io(source) => TorchFileError::Write { path, source },
            Self::Unwritable(detail) => TorchFileError::Unwritable { path, detail },
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<zip::result::ZipError> for Fault {
    fn from(error: zip::result::ZipError) -> Self {
        match error {
            zip::result::ZipError::Io(error) => Self::Io(error),
            other => Self::Io(other.into()),
        }
    }
}

struct Archive<W: Write + Seek> {
    zip: ZipWriter<UntilError<W>>,
    stem: String,
    tensors: Vec<Planned>,
    done: usize,
}

impl<W: Write + Seek> Archive<W> {
    fn start(out: W, stem: &str, value: &PyValue) -> std::result::Result<Self, Fault> {
        let (pickle, tensors) = encode(value).map_err(Fault::Unwritable)?;
        let mut archive = Self {
            zip: ZipWriter::new(UntilError { out, at: 0, failed: false }),
            stem: stem.to_owned(),
            tensors,
            done: 0,
        };
        archive.entry("data.pkl", &mut &*pickle, pickle.len())?;
        // No .format_version: with it torch may compute where storages lie instead of looking, by the rules of the
        // zip library that it happens to use.
        archive.entry("byteorder", &mut &b"little"[..], 6)?;
        archive.fill()?;
        Ok(archive)
    }

    fn tensor(&mut self, reader: &mut dyn Read, bytes: usize) -> std::result::Result<(), Fault> {
        let next = self.tensors.get(self.done).map(|planned| &planned.spec);
        let spec = next.ok_or_else(|| Fault::Unwritable("a tensor more than was announced".into()))?;
        if spec.bytes() != Some(bytes) {
            let detail = format!(
                "tensor {} should be {} of shape {:?}, it was given {bytes} bytes",
                self.done, spec.dtype, spec.shape
            );
            return Err(Fault::Unwritable(detail));
        }
        self.storage(reader, bytes)?;
        self.fill()
    }

    /// Writes the tensors that are known already, up to the next that is not.
    fn fill(&mut self) -> std::result::Result<(), Fault> {
        while let Some(bytes) = self.tensors.get_mut(self.done).and_then(|planned| planned.filled.take()) {
            self.storage(&mut &*bytes, bytes.len())?;
        }
        Ok(())
    }

    fn storage(&mut self, reader: &mut dyn Read, bytes: usize) -> std::result::Result<(), Fault> {
        self.entry(&format!("data/{}", self.done), reader, bytes)?;
        self.done += 1;
        Ok(())
    }

    fn entry(&mut self, name: &str, reader: &mut dyn Read, bytes: usize) -> std::result::Result<(), Fault> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(zip::DateTime::default())
            .large_file(bytes as u64 > LARGE)
            .with_alignment_and_header_id(ALIGNMENT, PADDING);
        self.zip.start_file(format!("{}/{name}", self.stem), options)?;
        let copied = std::io::copy(&mut reader.take(bytes as u64), &mut self.zip)?;
        if copied != bytes as u64 {
            let detail = format!("{name} ended after {copied} of {bytes} bytes");
            return Err(std::io::Error::new(ErrorKind::UnexpectedEof, detail).into());
        }
        Ok(())
    }

    fn finish(mut self) -> std::result::Result<W, Fault> {
        if self.done < self.tensors.len() {
            let (done, all) = (self.done, self.tensors.len());
            return Err(Fault::Unwritable(format!("only {done} of {all} tensors were written")));
        }
        self.entry("version", &mut &b"3\n"[..], 2)?;
        let UntilError { out, failed, .. } = self.zip.finish()?;
        match failed {
            true => Err(std::io::Error::other("an error before was passed over").into()),
            false => Ok(out),
        }
    }
}

/// Takes everything once something has failed: a dropped zip writer tries to end its archive, and prints to standard error
/// when it cannot.
struct UntilError<W> {
    out: W,
    /// Where the next byte goes, or would go.
    at: u64,
    failed: bool,
}

impl<W: Write> Write for UntilError<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = if self.failed { Ok(bytes.len()) } else { self.out.write(bytes) };
        self.failed |= done.as_ref().is_err_and(|error| error.kind() != ErrorKind::Interrupted);
        self.at += *done.as_ref().unwrap_or(&0) as u64;
        done
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let done = if self.failed { Ok(()) } else { self.out.flush() };
        self.failed |= done.is_err();
        done
    }
}

impl<W: Seek> Seek for UntilError<W> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let done = match to {
            _ if !self.failed => self.out.seek(to),
            SeekFrom::Start(at) => Ok(at),
            SeekFrom::Current(by) => Ok(self.at.saturating_add_signed(by)),
            SeekFrom::End(_) => Ok(self.at),
        };
        self.failed |= done.is_err();
        self.at = *done.as_ref().unwrap_or(&self.at);
        done
    }
}
