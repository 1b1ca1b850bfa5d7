//! Where a run writes: a folder, or a prefix of an object store with a folder of this machine before it.
//!
//! Every file is finished in the folder first. With an object store it is then sent, and counts when it has
//! arrived: a process that starts believes what is in the store, and nothing that is left on a machine. Files of
//! other processes are received when they are needed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use packd_sinks::{AtomicFile, create_folder, hash_file, write_file};
use packd_storage::{Object, StorageError, Stores, is_url, local_path};
use tempfile::{NamedTempFile, TempDir};

use crate::error::Error;
use crate::state::ledger::FinishedFile;

/// The output of a run; clones are the same one.
#[derive(Debug, Clone)]
pub(crate) struct Output(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// As it was configured.
    name: PathBuf,
    /// The folder on this machine.
    folder: PathBuf,
    remote: Option<Remote>,
    fetching: Mutex<()>,
}

#[derive(Debug)]
struct Remote {
    prefix: Object,
    /// Held until it is dropped, which removes the folder.
    _scratch: TempDir,
    /// Locked, so that whoever finds the folder knows that it is in use.
    _lock: File,
}

/// Files that are sent or received at once.
const FILES_AT_ONCE: usize = 16;
/// Name of the folder of a process, up to its own part.
const SCRATCH: &str = "packd-output-";
const SCRATCH_LOCK: &str = ".in-use";
const SURELY_LOCKED: Duration = Duration::from_secs(60);

impl Output {
    /// Nothing is created yet, except for the folder of this machine that stands before a store: that lies in
    /// `scratch`.
    pub(crate) fn open(name: &Path, stores: &Arc<Stores>, scratch: Option<&Path>) -> Result<Self, Error> {
        let text = name.to_string_lossy();
        if !is_url(&text) {
            let folder = local_path(&text).unwrap_or_else(|| name.to_owned());
            return Ok(Self(Arc::new(Inner {
                name: folder.clone(),
                folder,
                remote: None,
                fetching: Mutex::default(),
            })));
        }
        if text.starts_with("http") {
            let help = "write to a folder or a bucket: s3://, gs:// or az://";
            return Err(Error::NotSet { key: "output", help });
        }
        let prefix = stores.object(&text)?;
        let above = scratch.map_or_else(std::env::temp_dir, Path::to_owned);
        let failed = |error: std::io::Error| Error::State { path: above.clone(), message: error.to_string() };
        remove_abandoned(&above);
        let scratch = tempfile::Builder::new().prefix(SCRATCH).tempdir_in(&above).map_err(failed)?;
        let lock = File::create(scratch.path().join(SCRATCH_LOCK)).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let folder = scratch.path().to_owned();
        let remote = Some(Remote { prefix, _scratch: scratch, _lock: lock });
        Ok(Self(Arc::new(Inner { name: name.to_owned(), folder, remote, fetching: Mutex::default() })))
    }

    /// Opens an output that exists, to look at it.
    pub(crate) fn open_existing(name: &Path) -> Result<Self, Error> {
        let internal = |error: std::io::Error| Error::Internal { stage: "store", message: error.to_string() };
        let stores = Stores::new(Default::default()).map_err(internal)?;
        Self::open(name, &stores, None)
    }

    /// The output as it was configured, for people.
    pub(crate) fn name(&self) -> &Path {
        &self.0.name
    }

    /// The folder on this machine.
    pub(crate) fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// The prefix in an object store, if that is where the output lies.
    pub(crate) fn remote(&self) -> Option<&Object> {
        self.0.remote.as_ref().map(|remote| &remote.prefix)
    }

    /// Where a file is written on this machine.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.folder.join(name)
    }

    /// What a file is called in a message.
    pub(crate) fn shown(&self, name: &str) -> PathBuf {
        self.0.name.join(name)
    }

    /// Makes the folder of this machine that files are written to.
    pub(crate) fn create_folder(&self, name: &str) -> Result<(), Error> {
        Ok(create_folder(&self.path(name))?)
    }

    fn object(&self, name: &str) -> Result<Option<Object>, Error> {
        let Some(prefix) = self.remote() else { return Ok(None) };
        let message = || "leads out of the output".to_owned();
        let object = prefix.join(name)?;
        Ok(Some(object.ok_or_else(|| Error::State { path: self.shown(name), message: message() })?))
    }

    /// Sends a file that is finished on this machine, so that all others see it.
    pub(crate) fn publish(&self, name: &str) -> Result<(), Error> {
        let Some(object) = self.object(name)? else { return Ok(()) };
        let path = self.path(name);
        let failed = |error: std::io::Error| Error::State { path: path.clone(), message: error.to_string() };
        let file = File::open(&path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        Ok(object.send(&Arc::new(file), size)?)
    }

    /// Sends files that are finished on this machine, many at once.
    pub(crate) fn publish_all(&self, names: &[String]) -> Result<(), Error> {
        at_once(names, |name| self.publish(name))
    }

    /// Removes this machine's copy of a file that was published. A folder that is the output keeps it.
    pub(crate) fn drop_copy(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        match self.remote().map(|_| std::fs::remove_file(&path)) {
            Some(Err(error)) => Err(Error::State { path, message: error.to_string() }),
            _ => Ok(()),
        }
    }

    /// Brings finished files to this machine, those that are not there already; checks each one's checksum.
    pub(crate) fn fetch<'a>(&self, files: impl IntoIterator<Item = &'a FinishedFile>) -> Result<(), Error> {
        if self.remote().is_none() {
            return Ok(());
        }
        // Several that need the same file receive it once.
        let _alone = self.0.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<&FinishedFile> =
            files.into_iter().filter(|file| !self.path(&file.name).exists()).collect();
        at_once(&missing, |file| self.fetch_one(file))
    }

    /// Brings everything to this machine, to be looked at.
    pub(crate) fn fetch_all(&self) -> Result<(), Error> {
        let Some(prefix) = self.remote() else { return Ok(()) };
        let found = prefix.list()?;
        if found.is_empty() {
            return Err(StorageError::Missing { url: prefix.url().to_owned() }.into());
        }
        for (name, version) in found {
            let Some(object) = self.object(&name)? else { continue };
            let path = self.path(&name);
            create_folder(path.parent().unwrap_or(self.folder()))?;
            let mut local = AtomicFile::create(&path)?;
            object.receive(version.size, local.file())?;
            local.commit()?;
        }
        Ok(())
    }

    fn fetch_one(&self, file: &FinishedFile) -> Result<(), Error> {
        let Some(object) = self.object(&file.name)? else { return Ok(()) };
        let path = self.path(&file.name);
        if let Some(folder) = path.parent() {
            create_folder(folder)?;
        }
        let received = self.receive(&object, file)?;
        if hash_file(received.path())? != file.checksum {
            let message = "it is not what was written there".to_owned();
            return Err(Error::State { path: self.shown(&file.name), message });
        }
        let failed = |error: tempfile::PersistError| Error::State { path, message: error.to_string() };
        received.persist(self.path(&file.name)).map(|_| ()).map_err(failed)
    }

    /// What an object holds now, in a file that is removed when it is dropped.
    fn receive(&self, object: &Object, file: &FinishedFile) -> Result<NamedTempFile, Error> {
        let failed =
            |error: std::io::Error| Error::State { path: self.0.folder.clone(), message: error.to_string() };
        let mut local = NamedTempFile::new_in(&self.0.folder).map_err(failed)?;
        object.receive(file.size, local.as_file_mut())?;
        Ok(local)
    }

    /// Whether a file holds the bytes that it was finished with.
    fn has_checksum(&self, file: &FinishedFile) -> Result<bool, Error> {
        let Some(object) = self.object(&file.name)? else {
            return Ok(hash_file(&self.path(&file.name)).is_ok_and(|hash| hash == file.checksum));
        };
        match self.receive(&object, file) {
            Ok(received) => Ok(hash_file(received.path())? == file.checksum),
            Err(Error::Storage(StorageError::Missing { .. } | StorageError::Content { .. })) => Ok(false),
            // That the store does not answer now says nothing of the file.
            Err(error) => Err(error),
        }
    }

    /// What a small file holds now; `None` if it is not there.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        if let Some(object) = self.object(name)? {
            return Ok(object.read()?.map(Vec::from));
        }
        let path = self.path(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::State { path, message: error.to_string() }),
        }
    }

    /// What small files hold now, many at once.
    pub(crate) fn read_many(&self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        if self.remote().is_none() {
            return names.iter().map(|name| self.read(name)).collect();
        }
        let objects: Vec<Object> = names
            .iter()
            .map(|name| self.object(name))
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        let found = Object::read_many(&objects).into_iter().map(|read| match read {
            Ok((_, bytes)) => Ok(Some(bytes.into())),
            Err(StorageError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        });
        found.collect()
    }

    /// Writes a small file for all to see; what was there is replaced.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        match self.object(name)? {
            Some(object) => Ok(object.write(bytes.to_vec().into())?),
            None => Ok(write_file(self.path(name), bytes)?),
        }
    }

    /// Writes a small file unless there is one; `false` if there is one with other bytes.
    pub(crate) fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool, Error> {
        if let Some(object) = self.object(name)? {
            return Ok(object.write_new(bytes.to_vec().into())?);
        }
        let mut file = AtomicFile::create(self.path(name))?;
        file.put(bytes)?;
        Ok(file.commit_new()?)
    }

    /// Removes a file; one that is not there is fine.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        if let Some(object) = self.object(name)? {
            return Ok(object.remove()?);
        }
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::State { path, message: error.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// The sizes of files; `None` for those that are not there or cannot be seen.
    pub(crate) fn sizes(&self, names: &[String]) -> Result<Vec<Option<u64>>, Error> {
        if self.remote().is_none() {
            let size = |name: &String| std::fs::metadata(self.path(name)).ok().map(|metadata| metadata.len());
            return Ok(names.iter().map(size).collect());
        }
        let objects: Vec<Object> = names
            .iter()
            .map(|name| self.object(name))
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        let found = Object::versions(&objects).into_iter().map(|version| match version {
            Ok(version) => Ok(Some(version.size)),
            Err(StorageError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        });
        found.collect()
    }

    /// Whether there is anything but a folder of this name at the top; so also when the output is a file.
    pub(crate) fn holds_other_than(&self, name: &str) -> Result<bool, Error> {
        if let Some(prefix) = self.remote() {
            let below = format!("{name}/");
            // Some tools leave an empty object in the place of a folder.
            return Ok(prefix.list()?.iter().any(|(found, _)| found != name && !found.starts_with(&below)));
        }
        let folder = self.folder();
        let foreign = std::fs::read_dir(folder)
            .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != name)));
        Ok(foreign || folder.is_file())
    }

    /// Whether a file is there.
    pub(crate) fn exists(&self, name: &str) -> Result<bool, Error> {
        Ok(self.sizes(&[name.to_owned()])?[0].is_some())
    }

    /// Which files are as they were recorded: their sizes, and with `checksums` their bytes.
    pub(crate) fn are_whole(&self, files: &[&FinishedFile], checksums: bool) -> Result<Vec<bool>, Error> {
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        let sizes = self.sizes(&names)?;
        let whole = files.iter().zip(sizes).map(|(file, size)| {
            if size != Some(file.size) {
                return Ok(false);
            }
            if !checksums {
                return Ok(true);
            }
            self.has_checksum(file)
        });
        whole.collect()
    }
}

/// Does something with files that a store takes its time for, some at once.
fn at_once<T: Sync>(files: &[T], each: impl Fn(&T) -> Result<(), Error> + Sync) -> Result<(), Error> {
    for some in files.chunks(FILES_AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|file| scope.spawn(|| each(file))).collect();
            threads.into_iter().try_for_each(|thread| {
                let lost = |_| Error::Internal { stage: "store", message: "a thread panicked".into() };
                thread.join().map_err(lost)?
            })
        })?;
    }
    Ok(())
}

/// Removes folders of processes that were killed.
fn remove_abandoned(above: &Path) {
    let Ok(entries) = std::fs::read_dir(above) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(SCRATCH) {
            continue;
        }
        let abandoned = |lock: File| {
            // One that was made just now may not be locked yet.
            let age = lock
                .metadata()
                .and_then(|metadata| metadata.modified())
                .ok()
                .and_then(|made| made.elapsed().ok());
            age.is_some_and(|age| age > SURELY_LOCKED) && lock.try_lock().is_ok()
        };
        let abandoned = File::open(entry.path().join(SCRATCH_LOCK)).is_ok_and(abandoned);
        if abandoned && let Err(error) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!(
                "{}: left by a process that was killed, and not to be removed: {error}",
                entry.path().display()
            );
        }
    }
}
