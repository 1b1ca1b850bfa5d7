//! What the benchmarks share: timing, tables, and the memory a piece of work takes.
//!
//! Each benchmark is a binary that prints one Markdown table. Times mean little on another machine, so
//! every table also gives a ratio to a floor that was measured in the same run.

#![deny(missing_docs)]

mod memory;
mod table;
mod timing;

pub use memory::{anonymous_peak_of, peak_of};
pub use table::{Table, scaled};
pub use timing::{best_of, milliseconds, processor_time, ratio};
