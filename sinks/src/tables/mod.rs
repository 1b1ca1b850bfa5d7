//! The Parquet tables of a run.

mod bins;
mod lengths;
mod table;

pub use bins::{BinRow, BinsWriter};
pub use lengths::{LengthRow, LengthsWriter};
