//! Exact, resumable sequence packing.

#![deny(missing_docs)]
