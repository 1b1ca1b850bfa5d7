//! Finished means renamed: no file is ever seen under its name before all of it is on the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::SinkError;

/// Marks the temporary names of this module, so that nobody else's hidden file is ever removed.
const MARK: &str = ".packd-tmp-";

/// A file that is written under a temporary name in the target's folder and appears with [`commit`](Self::commit).
///
/// Dropped without a commit it is removed. After a crash a hidden file stays; [`remove_temporaries`] clears it.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    target: PathBuf,
    temporary: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Opens a new temporary file (`O_EXCL`) beside `target`, for reading and writing.
    ///
    /// # Errors
    /// [`SinkError::Create`] when the folder is missing or not writable.
    pub fn create(target: impl Into<PathBuf>) -> Result<Self, SinkError> {
        let target = target.into();
        loop {
            let temporary = temporary_name(&target);
            let create = || OpenOptions::new().read(true).write(true).create_new(true).open(&temporary);
            // A name that is taken here is really taken: the next one is free.
            let create = || match create() {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(Err(e)),
                created => created.map(Ok),
            };
            match until_seen(|error| remembers(&temporary, error), create).flatten() {
                Ok(file) => return Ok(Self { file, target, temporary, committed: false }),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(SinkError::Create { path: target, source }),
            }
        }
    }

    /// The open temporary file, positioned where the last write ended.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// The name that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`SinkError::Write`] with the target's name.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.file.write_all(bytes).map_err(SinkError::write(&self.target))
    }

    /// Syncs the file, renames it to its name (replacing what was there) and syncs the folder.
    ///
    /// # Errors
    /// [`SinkError::Write`]; nothing is visible then.
    pub fn commit(mut self) -> Result<(), SinkError> {
        self.file.sync_all().map_err(SinkError::write(&self.target))?;
        fs::rename(&self.temporary, &self.target).map_err(SinkError::write(&self.target))?;
        self.committed = true;
        sync_folder(self.target.parent().unwrap_or(Path::new("."))).map_err(SinkError::write(&self.target))
    }
}

impl AtomicFile {
    /// Like [`commit`](Self::commit), unless the name is taken: then what is there stays, and the result is
    /// `false`. Of several processes that do this at once just one succeeds (a hard link is made, as that is
    /// atomic on network file systems as well).
    ///
    /// # Errors
    /// [`SinkError::Write`]; nothing is visible then.
    pub fn commit_new(self) -> Result<bool, SinkError> {
        self.file.sync_all().map_err(SinkError::write(&self.target))?;
        match fs::hard_link(&self.temporary, &self.target) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(false),
            // A file system without hard links: two processes must meet within a moment to harm each other.
            Err(_) if self.target.exists() => return Ok(false),
            Err(_) => return self.commit().map(|()| true),
        }
        // Dropping this removes the temporary name.
        let folder = self.target.parent().unwrap_or(Path::new("."));
        sync_folder(folder).map_err(SinkError::write(&self.target))?;
        Ok(true)
    }
}

/// For buffered writers and encoders; their errors lack the path, so the caller adds it.
impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // The file is useless now; that it cannot be removed is no reason to fail differently.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Writes a whole small file: temporary name, sync, rename.
///
/// # Errors
/// [`SinkError::Create`] or [`SinkError::Write`].
pub fn write_file(target: impl Into<PathBuf>, bytes: &[u8]) -> Result<(), SinkError> {
    let mut file = AtomicFile::create(target)?;
    file.put(bytes)?;
    file.commit()
}

/// Creates a folder and its parents; one that exists is fine.
///
/// # Errors
/// [`SinkError::Create`].
pub fn create_folder(path: &Path) -> Result<(), SinkError> {
    // All parents are made: one that is missing is one that another machine made.
    let remembers = |error: &io::Error| match error.kind() {
        ErrorKind::NotFound => Some(NAMES_REMEMBERED),
        _ => remembers(path, error),
    };
    let is_other = |path: &Path| fs::symlink_metadata(path).is_ok() && !path.is_dir();
    let made = until_seen(remembers, || match fs::create_dir_all(path) {
        // What is there is known, and no folder.
        Err(error) if path.ancestors().any(is_other) => Ok(Err(error)),
        made => made.map(Ok),
    });
    made.flatten().map_err(SinkError::create(path))
}

/// Opens a file that several processes share, and makes it where it is not there yet; it is not cut.
///
/// # Errors
/// What the system says.
pub fn open_shared(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().append(true).create(true).open(path);
    until_seen(|error| remembers(path, error), open)
}

/// Tries again where another machine has just made something and this one may still remember how it was. Network
/// file systems do for a moment; `remembers` says how long after an error.
fn until_seen<T>(
    remembers: impl Fn(&io::Error) -> Option<Duration>,
    mut create: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let started = Instant::now();
    loop {
        let error = match create() {
            Err(error) => error,
            made => return made,
        };
        if remembers(&error).is_none_or(|limit| started.elapsed() >= limit) {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long the file system may remember what led to `error` at making the file `path`: that a name is taken, or
/// that nothing is found in a folder that is there, or where the folder itself is.
fn remembers(path: &Path, error: &io::Error) -> Option<Duration> {
    match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::StaleNetworkFileHandle => Some(NAMES_REMEMBERED),
        ErrorKind::NotFound if path.parent().is_some_and(Path::is_dir) => Some(NAMES_REMEMBERED),
        // Most likely the folder is really not there.
        ErrorKind::NotFound => Some(FOLDERS_REMEMBERED),
        _ => None,
    }
}

/// For how long a file system may remember that a name was free; NFS does for up to a minute by default.
const NAMES_REMEMBERED: Duration = Duration::from_secs(60);

/// For how long a folder may be missed that another machine has just made; FUSE remembers for a second by default.
const FOLDERS_REMEMBERED: Duration = Duration::from_secs(3);

/// True for the name of a file that an interrupted [`AtomicFile`] left.
pub fn is_temporary(file_name: &str) -> bool {
    file_name.starts_with('.') && file_name.contains(MARK)
}

/// Removes what interrupted runs left in `folder` (not below it) and returns how many files that were.
///
/// Only to be called when no other process writes there: a file in use would be pulled away.
///
/// # Errors
/// [`SinkError::Read`] when the folder cannot be listed, [`SinkError::Write`] when a file cannot be removed.
pub fn remove_temporaries(folder: &Path) -> Result<usize, SinkError> {
    let mut removed = 0;
    for entry in fs::read_dir(folder).map_err(SinkError::read(folder))? {
        let entry = entry.map_err(SinkError::read(folder))?;
        if is_temporary(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path()).map_err(SinkError::write(entry.path()))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// A hidden name beside `target`; process, time and a counter make it unlikely, `O_EXCL` makes it sure.
fn temporary_name(target: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}{MARK}{:x}-{nanos:x}-{count:x}", std::process::id()))
}

/// Makes a rename last. Some file systems (FUSE, CIFS) know no sync of a folder and say so.
fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn of_many_that_create_a_file_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let target = folder.path().join(round.to_string());
            let create = |number: u8| {
                let mut file = AtomicFile::create(&target).unwrap();
                file.put(&[number]).unwrap();
                file.commit_new().unwrap().then_some(number)
            };
            let winners: Vec<u8> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || create(number))).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(winners.len(), 1);
            assert_eq!(fs::read(&target).unwrap(), winners);
        }
        assert_eq!(names(folder.path()).len(), 50, "no temporary name is left");
    }

    #[test]
    fn appears_only_when_committed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.json");
        let mut file = AtomicFile::create(&target).unwrap();
        file.put(b"one").unwrap();
        let before = names(folder.path());
        assert_eq!(before.len(), 1);
        assert!(is_temporary(&before[0]), "{before:?}");
        file.commit().unwrap();
        assert_eq!(names(folder.path()), ["a.json"]);
        write_file(&target, b"two").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"two");
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(folder.path().join("a")).unwrap();
        file.put(b"half").unwrap();
        drop(file);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn temporaries_of_a_killed_process_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        std::mem::forget(AtomicFile::create(folder.path().join("a.tar")).unwrap());
        fs::write(folder.path().join(".info.json"), "{}").unwrap();
        fs::write(folder.path().join("a.tmp"), "").unwrap();
        assert_eq!(remove_temporaries(folder.path()).unwrap(), 1);
        assert_eq!(names(folder.path()), [".info.json", "a.tmp"]);
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_said_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taken");
        fs::write(&file, "").unwrap();
        let started = Instant::now();
        assert!(create_folder(&file).unwrap_err().is_cannot_create());
        assert!(create_folder(&file.join("below")).unwrap_err().is_cannot_create());
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        assert!(create_folder(&folder.path().join("dangling/below")).unwrap_err().is_cannot_create());
        assert!(started.elapsed() < FOLDERS_REMEMBERED);
        create_folder(&folder.path().join("a/b")).unwrap();
        create_folder(&folder.path().join("a/b")).unwrap();
    }

    #[test]
    fn a_name_that_was_thought_to_be_free_is_tried_again() {
        let mut tries = 0;
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("a");
        let seen = until_seen(
            |error| remembers(&name, error),
            || {
                tries += 1;
                match tries {
                    1 => Err(ErrorKind::AlreadyExists.into()),
                    2 => Err(ErrorKind::NotFound.into()),
                    _ => Ok(tries),
                }
            },
        );
        assert_eq!(seen.unwrap(), 3);
        let absent = folder.path().join("absent/a");
        assert_eq!(remembers(&absent, &ErrorKind::NotFound.into()), Some(FOLDERS_REMEMBERED));
        assert_eq!(remembers(&name, &ErrorKind::PermissionDenied.into()), None);
    }

    #[test]
    fn a_missing_folder_is_a_create_error_with_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("no/such/a.tar");
        let error = AtomicFile::create(&target).unwrap_err();
        assert!(error.is_cannot_create());
        assert!(error.to_string().contains("no/such/a.tar"), "{error}");
    }

    #[test]
    fn a_full_disk_is_a_write_error_with_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(folder.path().join("a.tar")).unwrap();
        file.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = file.put(b"x").unwrap_err();
        assert!(matches!(&error, SinkError::Write { source, .. } if source.kind() == ErrorKind::StorageFull));
        assert!(error.to_string().contains("a.tar"), "{error}");
    }
}
