//! The tensors of a Megatron checkpoint under their Hugging Face names.
//!
//! What rows of a rank's tensor are in Hugging Face tensors is what the [cuts](super::pieces) say; here the same is read
//! the other way round.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::args::TrainedWith;
use super::error::ConvertError;
use super::model::{Model, Place};
use super::names::EMBEDDING;
use super::pieces::cut;
use super::ranks::Ranks;
use super::sharding::Rank;
use super::stream::{HfTensors, overlap};
use crate::error::Result;
use crate::layout::AskedDegrees;
use crate::progress::Progress;
use crate::torch_file::TorchDtype;

/// A block of a Hugging Face tensor, and where it lies.
struct Segment {
    rows: Range<usize>,
    cols: Range<usize>,
    rank: Rank,
    /// The rank's tensor.
    tensor: usize,
    /// Row of that tensor that the block starts with; it has all columns.
    start: usize,
}

struct Tensor {
    dtype: TorchDtype,
    cols: usize,
    /// In the order of rows, then of columns.
    segments: Vec<Segment>,
}

/// Mapped files of ranks.
pub(super) struct McoreSource {
    ranks: Ranks,
    tensors: HashMap<String, Tensor>,
}

impl McoreSource {
    /// Opens a checkpoint, all of whose ranks must have all tensors of the model and no others. With `compared`, tensors
    /// that several ranks have must be the same on all of them: that reads every copy.
    pub(super) fn open(
        dir: &Path,
        asked: &AskedDegrees,
        model: &Model,
        hf: &Path,
        compared: Option<&Progress>,
    ) -> Result<Self> {
        let (ranks, sharding) = Ranks::open(dir, asked, model, hf)?;
        let mut tensors: HashMap<String, Tensor> = HashMap::new();
        let mut copies = Vec::new();
        for rank in sharding.ranks() {
            for (entry, name) in sharding.held(model, rank) {
                let owner = sharding.owner(entry, rank);
                let same = match entry.place {
                    _ if owner != rank => Some((owner, name.as_str())),
                    Place::LaterThanFirst => Some((Rank { pp: 0, ..rank }, EMBEDDING[0].mcore)),
                    _ => None,
                };
                if let Some((owner, of_owner)) = same {
                    if compared.is_some() {
                        let [copy, original] = [ranks.find(rank, &name)?, ranks.find(owner, of_owner)?];
                        copies.push([(rank, copy.0), (owner, original.0)]);
                    }
                    continue;
                }
                let (tensor, dtype) = ranks.find(rank, &name)?;
                let mut start = 0;
                for piece in cut(entry, model, &sharding, rank).pieces {
                    let from = start;
                    start += piece.height();
                    if piece.filler.is_some() {
                        continue;
                    }
                    let hf = &entry.parts[piece.part].0;
                    let cols = entry.matrix(piece.part).1;
                    let known = tensors.entry(hf.clone()).or_insert_with(|| Tensor {
                        dtype,
                        cols,
                        segments: Vec::new(),
                    });
                    if known.dtype != dtype {
                        return Err(ConvertError::Dtypes {
                            name: format!("{name} of {}", ranks.path(rank).display()),
                            found: dtype,
                            other: hf.clone(),
                            expected: known.dtype,
                        }
                        .into());
                    }
                    let (rows, cols) = (piece.rows, piece.cols);
                    known.segments.push(Segment { rows, cols, rank, tensor, start: from });
                }
            }
        }
        if let Some(progress) = compared {
            ranks.compare(&copies, progress)?;
        }
        for tensor in tensors.values_mut() {
            tensor.segments.sort_by_key(|segment| (segment.rows.start, segment.cols.start));
        }
        Ok(Self { ranks, tensors })
    }
}

impl HfTensors for McoreSource {
    fn dtype(&self, name: &str) -> Option<TorchDtype> {
        self.tensors.get(name).map(|tensor| tensor.dtype)
    }

    fn read(&self, name: &str, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        // The names and ranges are those of the model, which were compared with the files on opening.
        let Some(tensor) = self.tensors.get(name) else { return Ok(()) };
        let width = tensor.cols;
        for beside in tensor.segments.chunk_by(|one, other| one.rows == other.rows) {
            let here = overlap(&beside[0].rows, &rows);
            match beside {
                _ if here.is_empty() => (),
                [whole] if whole.cols == cols && cols.len() == width => {
                    let first = whole.start + here.start - whole.rows.start;
                    let elements = first * width..(first + here.len()) * width;
                    self.ranks.elements(whole.rank, whole.tensor, elements, out);
                }
                _ => {
                    // Segments beside each other are written row by row.
                    for row in here {
                        for segment in beside {
                            let part = overlap(&segment.cols, &cols);
                            if part.is_empty() {
                                continue;
                            }
                            let first = (segment.start + row - segment.rows.start) * segment.cols.len();
                            let from = first + part.start - segment.cols.start;
                            self.ranks.elements(segment.rank, segment.tensor, from..from + part.len(), out);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl McoreSource {
    /// Where `args` say other things than the configuration.
    pub(super) fn trained_with(&self) -> TrainedWith {
        self.ranks.trained_with
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.ranks.notes.iter().cloned().collect()
    }
}
