//! Torch files: those of real torch are read, those made to harm are refused, and what is written comes back.

#![allow(clippy::unwrap_used)]

/// Built without its crate, as the fuzz target does it: it may use nothing else of it.
#[allow(dead_code, unreachable_pub, unused_imports)]
#[path = "../../src/torch_file/mod.rs"]
mod alone;
mod read;
mod refused;
mod support;
mod written;
