//! Which samples go into one packed sequence: best-fit-decreasing over the histogram of lengths.
//!
//! Best-fit-decreasing (BFD) takes the longest sample first and puts each into the open bin with the
//! least room that still holds it; a new bin is opened only when none does; among bins of equal room
//! the most recently changed one wins. BFD looks at lengths only, so all samples of one length are
//! placed at once and the work does not depend on the number of samples ([`Patterns`]). Which sample
//! sits in which place is decided afterwards, by seeded permutations that can be evaluated at any
//! point ([`Packing`]).
//!
//! ```
//! use packd_stages::bin_pack::{Algorithm, Item, Limits, pack};
//!
//! let items = [7, 3, 5, 5].map(|length| Item { length, ..Item::default() });
//! let packing = pack(&items, &Limits::new(10), Algorithm::BestFitDecreasing, 42)?;
//! assert_eq!(packing.len(), 2);
//!
//! for members in packing.iter() {
//!     assert_eq!(members.iter().map(|&ordinal| items[ordinal as usize].length).sum::<u32>(), 10);
//! }
//! # Ok::<(), packd_stages::bin_pack::PackError>(())
//! ```
//!
//! The family is known as histogram packing (longest-pack-first: Krell et al. 2021, arXiv 2107.02027).
//! Here the patterns are exactly those of sample-by-sample BFD, `max_samples` included.

mod best_fit;
mod error;
mod first_fit;
mod global;
mod item;
mod layout;
mod limits;
mod mend;
mod packing;
mod patterns;
mod places;
mod quality;
mod refit;
mod rooms;
mod shuffle;
#[cfg(test)]
mod tests;

pub use error::PackError;
pub use global::{GlobalPacking, Member};
pub use item::Item;
pub use limits::{Limits, Misfit};
pub use packing::{Algorithm, Packing, pack};
pub use patterns::{Pattern, Patterns, Run};
pub use quality::{FillBand, Quality, Spread};
pub use shuffle::Permutation;
