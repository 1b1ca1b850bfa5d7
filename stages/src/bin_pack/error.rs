//! Why a set of samples could not be packed.

use super::limits::Misfit;

/// Why [`pack`](super::pack) refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// A limit has a value that no sample can meet, or that would need absurd memory.
    #[error("{limit} is {value}: {rule}")]
    Limit {
        /// The limit by its name in the configuration.
        limit: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        rule: &'static str,
    },
    /// A sample cannot be packed even alone. Callers find all of them with
    /// [`Limits::check`](super::Limits::check) and reject them before packing.
    #[error("sample {ordinal} fits no pack: {misfit}")]
    Misfit {
        /// The ordinal of the first such sample.
        ordinal: u64,
        /// What is wrong with it.
        misfit: Misfit,
    },
    /// Ordinals are 32 bits wide.
    #[error("{count} samples in one packing, at most {} are possible: pack in windows", u32::MAX)]
    TooManySamples {
        /// How many were given.
        count: u64,
    },
    /// The histogram counts samples of length 0, or longer than a bin.
    #[error("the histogram counts {count} samples of length {length}, but a bin holds 1 to {capacity}")]
    Histogram {
        /// The length, in units of `pad_to_multiple`.
        length: u64,
        /// How many samples of it.
        count: u64,
        /// The capacity of a bin, in units of `pad_to_multiple`.
        capacity: u32,
    },
}
