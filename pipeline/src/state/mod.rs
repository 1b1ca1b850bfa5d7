//! What a run keeps in `OUT/run/`, so that it can be continued.

pub(crate) mod commits;
pub(crate) mod job_file;
pub(crate) mod ledger;
pub(crate) mod node;
pub(crate) mod previous;
pub(crate) mod rows;
pub(crate) mod sorted;
pub(crate) mod stats;
pub(crate) mod unit;
