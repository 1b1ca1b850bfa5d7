//! Conversion between Hugging Face and Megatron checkpoints.

#![allow(clippy::unwrap_used)]

mod consistency;
mod contradictions;
mod golden;
mod refused;
mod round_trip;
mod support;
