//! What a packd run leaves, to the byte.
//!
//! * [`ShardWriter`]: one WebDataset shard (plain ustar) and its `.tar.idx`, committed as a whole.
//! * [`write_energon_metadata`]: the `.nv-meta` folder, so that Megatron-Energon loads the shards as they are.
//! * [`write_metadataset`]: the top-level yaml over the folders of all nodes.
//! * [`scan_shard`]: the index of a tar that exists already, whoever wrote it.
//! * [`LengthsWriter`] and [`BinsWriter`]: the Parquet tables. [`RejectsWriter`]: the records that were not packed.
//! * [`Checksums`]: the list that `xxh128sum -c` reads.
//!
//! Every file appears under its name only when it is complete ([`AtomicFile`]), and the same input gives
//! the same bytes: no clock, no user, no host name is written anywhere.

#![deny(missing_docs)]

mod atomic_file;
mod brace_collapse;
mod checksums;
mod energon;
mod error;
mod hashed_tar;
mod metadataset;
mod names;
mod packed_json;
mod rejects;
mod scan;
mod shard_index;
mod shard_writer;
mod sqlite_index;
mod tables;
mod ustar;
mod yaml;

pub use atomic_file::{AtomicFile, create_folder, is_temporary, open_shared, remove_temporaries, write_file};
pub use brace_collapse::brace_collapse;
pub use checksums::{Checksums, hash_file};
pub use energon::{
    ENERGON_VERSION, EnergonOptions, EnergonSummary, METADATA_FOLDER, SAMPLE_LOADER, SampleType,
    write_energon_metadata,
};
pub use error::SinkError;
pub use metadataset::{Blend, MetadatasetEntry, write_metadataset};
pub use names::{is_valid_prefix, pack_key, pack_key_of_node, shard_name};
pub use packed_json::{PackedSample, RESERVED_KEYS, SampleClass, SubSample};
pub use rejects::{Reject, RejectsWriter};
pub use scan::scan_shard;
pub use shard_index::{
    CommittedPack, CommittedSubSample, IndexedSample, LostSample, Part, ShardCommit, ShardIndex,
};
pub use shard_writer::{ShardOptions, ShardWriter};
pub use sqlite_index::SqliteOptions;
pub use tables::{BinRow, BinsWriter, LengthRow, LengthsWriter};
pub use ustar::member_bytes;
