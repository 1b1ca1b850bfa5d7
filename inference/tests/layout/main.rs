//! Layouts of Megatron checkpoints, on trees made here.

#![allow(clippy::unwrap_used)]

mod command;
mod problems;
mod recognised;
mod support;
