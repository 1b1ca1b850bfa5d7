//! Merged checkpoints against their sources, right ones and damaged ones.

mod cli;
mod faults;
mod right;
mod support;
