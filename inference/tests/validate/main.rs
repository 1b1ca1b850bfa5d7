//! Merged checkpoints of the tiny sources of `fixtures/merge` against these sources, right ones and damaged ones.

#![allow(clippy::unwrap_used)]

mod cli;
mod faults;
mod right;
mod support;
