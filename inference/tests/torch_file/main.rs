//! Torch files: those of real torch are read, those made to harm are refused, and what is written comes back.

#![allow(clippy::unwrap_used)]

mod read;
mod refused;
mod support;
mod written;
