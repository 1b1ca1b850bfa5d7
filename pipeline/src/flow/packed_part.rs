//! Which samples a pack holds, and their rows.

use std::sync::Arc;

use packd_stages::bin_pack::{GlobalPacking, Packing};

use crate::error::Error;
use crate::state::rows::{Row, RowStore};
use crate::state::sorted::SortedRows;

/// Some packs of the run, and where their samples are found.
pub(crate) enum PackedPart {
    /// Samples that were packed in one memory.
    Gathered {
        packing: Packing,
        rows: Arc<RowStore>,
        /// Row of the part's first sample.
        first_row: u64,
        /// Rows of the part's samples, where some are left out (`duplicate_id: reject`).
        kept: Option<Vec<u64>>,
        /// Number of the part's first pack.
        first_pack: u64,
    },
    /// Samples of all nodes, found by their class and rank.
    Global { packing: GlobalPacking, nodes: Vec<SortedRows> },
}

impl PackedPart {
    /// Row number in the run, and row, of each sample in a pack, in their final order.
    pub(crate) fn rows(&self, pack: u64) -> Result<Vec<(u64, Row)>, Error> {
        match self {
            Self::Gathered { packing, rows, first_row, kept, first_pack } => {
                let members = packing.members(pack - first_pack).iter();
                let numbers = members.map(|member| match kept {
                    Some(kept) => kept[*member as usize],
                    None => first_row + u64::from(*member),
                });
                numbers.map(|number| Ok((number, rows.get(number)?))).collect()
            }
            Self::Global { packing, nodes } => {
                let members = packing.members(pack).into_iter();
                members.map(|member| nodes[member.node as usize].get(member.class, member.rank)).collect()
            }
        }
    }
}
