//! The pure steps of packd, each usable alone.
//!
//! * [`Validator`]: is the record one that the trainer can use, and are its images all there?
//! * [`TokenLength`]: how many tokens will the trainer concatenate for it, and do they fit?
//! * [`bin_pack`]: which samples share a packed sequence?
//!
//! No stage knows of another, of channels or of threads; the `packd` crate joins them.

#![deny(missing_docs)]

pub mod bin_pack;
mod decode;
mod token_length;
mod validate;

pub use token_length::{Measured, TokenLength, Unmeasured};
pub use validate::{ValidSample, Validation, Validator};
