//! What packer and trainer must agree on.
//!
//! A packed sequence is only as good as the lengths it was packed with: one token too many and the
//! training job dies hours later. This crate holds every rule that decides such a length or such a
//! verdict, and nothing else: no files, no threads, no clock.
//!
//! * [`Sample`]: one training sample, as every input shape is normalised to.
//! * [`Verdict`] and [`Reason`]: why a record was not packed, with codes that never change.

#![deny(missing_docs)]

mod reason;
mod sample;

pub use reason::{Reason, Verdict};
pub use sample::{ImageRef, Sample};
