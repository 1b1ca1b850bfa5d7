//! `verify` names every fault that is planted in an output, and nothing else.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod foreign;
mod hostile;
mod index_and_inspect;
mod planted;
mod set;
