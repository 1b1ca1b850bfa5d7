//! One object, or all objects below a prefix.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::connect::Bucket;
use crate::error::StorageError;
use crate::location::join;
use crate::retry::again;
use crate::stores::Stores;

/// Size of an object, and what tells this version of it from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectVersion {
    /// Size in bytes.
    pub size: u64,
    /// When it was last written, in nanoseconds since 1970; stores know it to a second.
    pub modified: u64,
}

impl ObjectVersion {
    fn of(meta: &ObjectMeta) -> Self {
        let modified = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
        Self { size: meta.size, modified: modified.max(0).cast_unsigned() }
    }
}

/// An object in a store, or a prefix of objects, by its URL.
#[derive(Clone)]
pub struct Object {
    pub(crate) stores: Arc<Stores>,
    pub(crate) bucket: Bucket,
    pub(crate) url: String,
    pub(crate) key: Path,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.url)
    }
}

/// Bytes of one request where a large object is received.
const RECEIVED_AT_ONCE: u64 = 8 << 20;
/// Bytes of one request of a stream, and how many requests a stream is ahead of its reader.
const STREAMED_AT_ONCE: u64 = 4 << 20;
const STREAMS_AHEAD: usize = 3;

impl Object {
    pub(crate) fn new(stores: Arc<Stores>, bucket: Bucket, url: String, key: Path) -> Self {
        Self { stores, bucket, url, key }
    }

    /// The URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The stores that it was opened with.
    pub fn stores(&self) -> &Arc<Stores> {
        &self.stores
    }

    /// The object called `relative` below this prefix; `None` where `..` leads out of it.
    ///
    /// # Errors
    /// A name that no object can have.
    pub fn join(&self, relative: &str) -> Result<Option<Self>, StorageError> {
        join(&self.url, relative).map(|url| self.stores.object(&url)).transpose()
    }

    /// Size and version.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn version(&self) -> Result<ObjectVersion, StorageError> {
        let meta = self.wait(|store, key| async move { store.head(&key).await })?;
        Ok(ObjectVersion::of(&meta))
    }

    /// Size and version of many objects at once, in their order.
    ///
    /// # Errors
    /// See [`StorageError`], for each object by itself.
    pub fn versions(objects: &[Self]) -> Vec<Result<ObjectVersion, StorageError>> {
        let at_once = |(store, key): (Arc<dyn ObjectStore>, Path)| async move {
            Ok(ObjectVersion::of(&store.head(&key).await?))
        };
        Self::for_each(objects, at_once)
    }

    /// All bytes; `None` where there is no such object.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn read(&self) -> Result<Option<Bytes>, StorageError> {
        match self.wait(|store, key| async move { store.get(&key).await?.bytes().await }) {
            Ok(bytes) => {
                self.stores.counters.received(bytes.len() as u64);
                Ok(Some(bytes))
            }
            Err(StorageError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first bytes, at most `limit`, and the version that they are of.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn read_start(&self, limit: u64) -> Result<(ObjectVersion, Bytes), StorageError> {
        let read = move |store: Arc<dyn ObjectStore>, key: Path| async move {
            let options = GetOptions::new().with_range(Some(GetRange::Bounded(0..limit)));
            match store.get_opts(&key, options).await {
                Ok(result) => Ok((result.meta.clone(), result.bytes().await?)),
                // No range of an empty object exists: stores answer 416.
                Err(error) => match store.head(&key).await {
                    Ok(meta) if meta.size == 0 => Ok((meta, Bytes::new())),
                    Err(missing @ object_store::Error::NotFound { .. }) => Err(missing),
                    _ => Err(error),
                },
            }
        };
        let (meta, bytes) = self.wait(read)?;
        self.stores.counters.received(bytes.len() as u64);
        Ok((ObjectVersion::of(&meta), bytes))
    }

    /// All bytes of many objects at once, in their order.
    ///
    /// # Errors
    /// See [`StorageError`], for each object by itself.
    pub fn read_many(objects: &[Self]) -> Vec<Result<(ObjectVersion, Bytes), StorageError>> {
        let read = |(store, key): (Arc<dyn ObjectStore>, Path)| async move {
            let result = store.get(&key).await?;
            let version = ObjectVersion::of(&result.meta);
            Ok((version, result.bytes().await?))
        };
        let found = Self::for_each(objects, read);
        for (object, (_, bytes)) in
            objects.iter().zip(&found).filter_map(|(o, read)| Some((o, read.as_ref().ok()?)))
        {
            object.stores.counters.received(bytes.len() as u64);
        }
        found
    }

    /// Asks the same of many objects, as many at once as are allowed.
    fn for_each<T, F>(
        objects: &[Self],
        ask: impl Fn((Arc<dyn ObjectStore>, Path)) -> F + Clone + Send + 'static,
    ) -> Vec<Result<T, StorageError>>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let Some(first) = objects.first() else { return Vec::new() };
        let asked: Vec<_> = objects
            .iter()
            .map(|object| {
                let (target, ask, url) = (object.target(), ask.clone(), object.url.clone());
                let answer = again(move || ask(target.clone()));
                async move { answer.await.map_err(|error| StorageError::new(&url, error)) }
            })
            .collect();
        let at_once = first.stores.concurrency();
        let all = async move { futures::stream::iter(asked).buffered(at_once).collect().await };
        first.stores.wait(&first.url, all)
    }

    /// Some bytes.
    ///
    /// # Errors
    /// [`StorageError::Content`] when the object is shorter; else see [`StorageError`].
    pub fn read_range(&self, range: Range<u64>) -> Result<Bytes, StorageError> {
        let mut found = self.read_ranges(vec![range])?;
        Ok(found.pop().unwrap_or_default())
    }

    /// Some ranges of bytes, many at once.
    ///
    /// # Errors
    /// See [`read_range`](Self::read_range).
    pub fn read_ranges(&self, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>, StorageError> {
        let (store, key) = self.target();
        let wanted = ranges.clone();
        let at_once = self.stores.concurrency();
        let all = async move {
            let reads = wanted.into_iter().map(|range| {
                let (store, key) = (Arc::clone(&store), key.clone());
                again(move || get_range(Arc::clone(&store), key.clone(), range.clone()))
            });
            futures::stream::iter(reads).buffered(at_once).try_collect().await
        };
        let found: object_store::Result<Vec<Bytes>> = self.stores.wait(&self.url, all);
        let found = found.map_err(|error| StorageError::new(&self.url, error))?;
        for (range, bytes) in ranges.iter().zip(&found) {
            let (wanted, got) = (range.end - range.start, bytes.len() as u64);
            self.stores.counters.received(got);
            if wanted != got {
                return Err(
                    self.content(format!("{wanted} bytes were asked for at {}, {got} came", range.start))
                );
            }
        }
        Ok(found)
    }

    /// A stream of some bytes, read ahead by a few requests. Each of them is repeated by itself when it fails, so
    /// that the stream may last for hours.
    pub fn stream(&self, range: Range<u64>) -> Box<dyn AsyncRead + Send + Unpin> {
        let reads = parts(range, STREAMED_AT_ONCE).map({
            let object = self.clone();
            move |part| {
                let ((store, key), object) = (object.target(), object.clone());
                let length = part.end - part.start;
                // Connections belong to the runtime that made them.
                let read = again(move || get_range(Arc::clone(&store), key.clone(), part.clone()));
                let read = object.stores.runtime().spawn(read);
                async move {
                    let bytes = read.await.map_err(object_store::Error::from).flatten();
                    let bytes = bytes.map_err(|error| StorageError::new(&object.url, error))?;
                    object.stores.counters.received(bytes.len() as u64);
                    match bytes.len() as u64 == length {
                        true => Ok(bytes),
                        false => Err(object.content("it is shorter than it was".into())),
                    }
                }
            }
        });
        let bytes = futures::stream::iter(reads).buffered(STREAMS_AHEAD).map_err(std::io::Error::from);
        Box::new(StreamReader::new(bytes))
    }

    /// Receives the whole object, of `size` bytes, into a file.
    ///
    /// # Errors
    /// See [`read_range`](Self::read_range); [`StorageError::Local`] for the file.
    pub fn receive(&self, size: u64, file: &mut File) -> Result<(), StorageError> {
        let local = |source| StorageError::Local { url: self.url.clone(), source };
        file.seek(SeekFrom::Start(0)).map_err(local)?;
        let parts: Vec<Range<u64>> = parts(0..size, RECEIVED_AT_ONCE).collect();
        for some in parts.chunks(4) {
            for bytes in self.read_ranges(some.to_vec())? {
                file.write_all(&bytes).map_err(local)?;
            }
        }
        Ok(())
    }

    /// Writes the object; what was there is replaced.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn write(&self, bytes: Bytes) -> Result<(), StorageError> {
        let size = bytes.len() as u64;
        let payload = PutPayload::from_bytes(bytes);
        self.wait(move |store, key| {
            let payload = payload.clone();
            async move { store.put(&key, payload).await }
        })?;
        self.stores.counters.sent(size);
        Ok(())
    }

    /// Writes the object only if there is none. Of several processes that do this at once just one succeeds;
    /// `false` where another one wrote other bytes.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn write_new(&self, bytes: Bytes) -> Result<bool, StorageError> {
        let payload = PutPayload::from_bytes(bytes.clone());
        let put = move |store: Arc<dyn ObjectStore>, key: Path, payload: PutPayload| async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match store.put_opts(&key, payload, options).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        if self.wait(move |store, key| put(store, key, payload.clone()))? {
            self.stores.counters.sent(bytes.len() as u64);
            return Ok(true);
        }
        // The first try of a repeated request may have been ours.
        Ok(self.read()?.is_some_and(|there| there == bytes))
    }

    /// Removes the object; one that is not there is fine.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn remove(&self) -> Result<(), StorageError> {
        match self.wait(|store, key| async move { store.delete(&key).await }) {
            Ok(()) | Err(StorageError::Missing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The objects below this prefix by their names from there on, sorted, with their versions.
    ///
    /// # Errors
    /// See [`StorageError`].
    pub fn list(&self) -> Result<Vec<(String, ObjectVersion)>, StorageError> {
        let found: Vec<ObjectMeta> =
            self.wait(|store, key| async move { store.list(Some(&key)).try_collect().await })?;
        let mut names: Vec<(String, ObjectVersion)> = found
            .iter()
            .filter_map(|meta| {
                let below = meta.location.prefix_match(&self.key)?;
                let name: Vec<_> = below.map(|part| part.as_ref().to_owned()).collect();
                (!name.is_empty()).then(|| (name.join("/"), ObjectVersion::of(meta)))
            })
            .collect();
        names.sort();
        Ok(names)
    }

    pub(crate) fn target(&self) -> (Arc<dyn ObjectStore>, Path) {
        (Arc::clone(&self.bucket.store), self.key.clone())
    }

    /// Asks something of the object, again where the answer broke off.
    fn wait<T, F>(
        &self,
        ask: impl Fn(Arc<dyn ObjectStore>, Path) -> F + Send + 'static,
    ) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let (store, key) = self.target();
        let asked = again(move || ask(Arc::clone(&store), key.clone()));
        self.stores.wait(&self.url, asked).map_err(|error| StorageError::new(&self.url, error))
    }

    pub(crate) fn content(&self, detail: String) -> StorageError {
        StorageError::Content { url: self.url.clone(), detail }
    }
}

fn parts(range: Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> + Send {
    let Range { start, end } = range;
    (start..end).step_by(size as usize).map(move |start| start..end.min(start + size))
}

async fn get_range(store: Arc<dyn ObjectStore>, key: Path, range: Range<u64>) -> object_store::Result<Bytes> {
    if range.is_empty() { Ok(Bytes::new()) } else { store.get_range(&key, range).await }
}
