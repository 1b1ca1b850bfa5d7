//! Object stores behind plain, blocking calls.
//!
//! * [`Stores`]: opens what URLs name (`s3://`, `gs://`, `az://`, `abfss://`, `http(s)://`), one client a bucket,
//!   with bounded concurrency, retries and counters. Credentials come from where those ecosystems have them.
//! * [`Object`]: one object, or a prefix of objects: read, read in parts, written, written only if absent.
//!
//! Calls block and may be made from any thread, also from one that an async runtime owns: the requests run on a
//! small runtime of the [`Stores`]. Files of this machine are no business of this crate.

#![deny(missing_docs)]

mod connect;
mod credentials;
mod error;
mod location;
mod object;
mod retry;
mod stores;
mod traffic;
mod uploads;

pub use error::StorageError;
pub use location::{is_url, local_path};
pub use object::{Object, ObjectVersion};
pub use object_store::ObjectStore;
pub use stores::{StoreOptions, Stores};
pub use traffic::Traffic;
