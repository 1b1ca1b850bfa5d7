//! Exact, resumable sequence packing of vision-language fine-tuning data.
//!
//! packd turns JSONL and images into fixed-length, padding-free training sequences that
//! Megatron-Energon loads as they are:
//!
//! ```text
//! source ─▶ validate ─▶ token-length ─▶ bin-pack ─▶ write
//! ```
//!
//! * [`Job`] is the whole of it: `Job::new(config)?.run().await?` returns a [`Report`].
//! * [`pack`] is for those who only want the bins.
//! * Every stage, source and sink is a crate of its own: [`contracts`], [`sources`], [`stages`], [`sinks`].
//!
//! Nothing here prints, exits or keeps global state.

#![deny(missing_docs)]

mod deploy;
mod error;
mod explain;
mod finalize;
mod flow;
mod index;
mod inspect;
mod job;
mod lengths;
mod merge;
mod output;
mod packed_set;
mod progress;
mod report;
mod state;
mod status;
mod verify;

pub use deploy::{DeployOptions, KubernetesOptions, Mount, SlurmOptions, deploy_kubernetes, deploy_slurm};
pub use error::{Error, exit};
pub use explain::{Explanation, RecordChoice, explain};
pub use index::{IndexOptions, index};
pub use inspect::{
    InspectedImage, InspectedSample, InspectedSet, InspectedShard, InspectedSubSample, inspect_sample,
    inspect_set,
};
pub use job::Job;
pub use lengths::{LengthsReport, SeqLenChoice, lengths};
pub use merge::{MergeOptions, MergedSet, merge};
pub use packd_config::{self as config, Config};
pub use packd_stages::bin_pack;
pub use packd_stages::bin_pack::{Limits, pack};
pub use progress::{Phase, Progress, Snapshot};
pub use report::{OutputReport, PackingReport, RejectExample, Report, Seconds, Stats, to_yaml};
pub use status::{NodeStatus, Status, status};
pub use verify::{Fault, FaultKind, VerifyOptions, VerifyReport, verify};
pub use {
    packd_contracts as contracts, packd_sinks as sinks, packd_sources as sources, packd_stages as stages,
    packd_storage as storage,
};
