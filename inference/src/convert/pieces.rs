//! What the rows of a rank's tensor are in Hugging Face tensors.

use std::ops::Range;

use super::model::{Entry, Model};
use super::names::Form;
use super::sharding::{Rank, Sharding, chunk};

/// A block of a Hugging Face tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which of the entry's Hugging Face tensors.
    pub(super) part: usize,
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
    /// How many times a row is there that only fills up the vocabulary; none for a block that is there once. Files and
    /// flags can ask for any number of them.
    pub(super) filler: Option<usize>,
}

impl Piece {
    /// Rows of the rank's tensor that it is.
    pub(super) fn height(&self) -> usize {
        self.rows.len() * self.filler.unwrap_or(1)
    }
}

/// What a rank holds of an entry: its pieces below each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) shape: Vec<usize>,
    pub(super) pieces: Vec<Piece>,
}

/// Cuts an entry for a rank. The sizes must have been [checked](Sharding::check).
pub(super) fn cut(entry: &Entry, model: &Model, sharding: &Sharding, rank: Rank) -> Cut {
    let part = sharding.part(entry, rank);
    let (rows, cols) = entry.matrix(0);
    let piece = |part, rows| Piece { part, rows, cols: 0..cols, filler: None };
    let mut shape = entry.parts[0].1.clone();
    let pieces = match entry.form() {
        Form::Whole => vec![piece(0, 0..rows)],
        Form::Rows => vec![piece(0, chunk(rows, part))],
        Form::Patch => {
            if !sharding.patch.four {
                shape = vec![rows, cols];
            }
            vec![piece(0, chunk(rows, part))]
        }
        Form::Columns => vec![Piece { cols: chunk(cols, part), ..piece(0, 0..rows) }],
        Form::Gated => vec![piece(0, chunk(rows, part)), piece(1, chunk(rows, part))],
        Form::TextQkv => {
            let text = &model.config.text;
            let heads = Heads {
                queries: text.num_attention_heads,
                groups: text.num_key_value_heads,
                width: text.head_dim,
            };
            heads.interleaved(part).map(|(which, rows)| piece(which, rows)).collect()
        }
        Form::VisionQkv => {
            let vision = &model.config.vision;
            let heads = Heads {
                queries: vision.num_attention_heads,
                groups: vision.num_attention_heads,
                width: vision.hidden_size / vision.num_attention_heads,
            };
            // Queries, keys and values below each other in one tensor.
            let below = |which, rows: Range<usize>| {
                let before = which * vision.hidden_size;
                rows.start + before..rows.end + before
            };
            heads.interleaved(part).map(|(which, rows)| piece(0, below(which, rows))).collect()
        }
        Form::Vocabulary => {
            let here = chunk(sharding.padded_vocab, part);
            let real = here.start.min(rows)..here.end.min(rows);
            let fillers = here.len() - real.len();
            let last = Piece { filler: Some(fillers), ..piece(0, rows - 1..rows) };
            [piece(0, real), last].into_iter().filter(|piece| piece.height() > 0).collect()
        }
    };
    shape[0] = pieces.iter().map(Piece::height).sum();
    if entry.form() == Form::Columns {
        shape[1] = pieces[0].cols.len();
    }
    Cut { shape, pieces }
}

/// Attention heads of a layer.
struct Heads {
    queries: usize,
    /// Key and value heads.
    groups: usize,
    width: usize,
}

impl Heads {
    /// Megatron's order of rows for one rank: for each group its queries, its key, its value. Yields 0, 1, 2 for queries,
    /// keys, values, with the rows of that matrix.
    fn interleaved(&self, part: (usize, usize)) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (width, of_group) = (self.width, self.queries / self.groups * self.width);
        chunk(self.groups, part).flat_map(move |group| {
            let head = group * width..(group + 1) * width;
            [(0, group * of_group..(group + 1) * of_group), (1, head.clone()), (2, head)]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::sharding::PatchForm;
    use super::*;
    use crate::config::ModelConfig;

    #[test]
    fn rows_that_fill_up_a_vocabulary_are_one_piece() {
        let config = include_str!("../../tests/golden/tiny_dense/config.json");
        let model = Model::new(ModelConfig::parse("config.json", config).unwrap());
        let entry = model.entries.iter().find(|entry| entry.form() == Form::Vocabulary).unwrap();
        let sharding = Sharding {
            tp: 2,
            stages: vec![2],
            ep: 1,
            etp: 2,
            patch: PatchForm { cut: true, four: false },
            padded_vocab: 1 << 40,
        };
        let half = 1 << 39;
        for (tp, real) in [(0, 512), (1, 0)] {
            let Cut { shape, pieces } = cut(entry, &model, &sharding, Rank { tp, pp: 0, ep: 0 });
            assert_eq!(shape, [half, 64]);
            let filler = Piece { part: 0, rows: 511..512, cols: 0..64, filler: Some(half - real) };
            assert_eq!(pieces.last(), Some(&filler));
            assert_eq!(pieces.len(), if real > 0 { 2 } else { 1 });
            assert_eq!(pieces[0].height(), if real > 0 { real } else { half });
        }
    }

    #[test]
    fn groups_have_their_queries_then_key_then_value() {
        let heads = Heads { queries: 4, groups: 2, width: 8 };
        let all: Vec<_> = heads.interleaved((0, 1)).collect();
        let expected = [(0, 0..16), (1, 0..8), (2, 0..8), (0, 16..32), (1, 8..16), (2, 8..16)];
        assert_eq!(all, expected);
        let second: Vec<_> = heads.interleaved((1, 2)).collect();
        assert_eq!(second, expected[3..]);
        // Row of query head j of group g, component d: g·(r+2)·w + j·w + d.
        let rows: Vec<(usize, usize)> =
            all.iter().flat_map(|(which, rows)| rows.clone().map(|row| (*which, row))).collect();
        let (r, w) = (2, 8);
        for (g, j, d) in [(0, 0, 0), (0, 1, 3), (1, 0, 7), (1, 1, 2)] {
            assert_eq!(rows[g * (r + 2) * w + j * w + d], (0, (g * r + j) * w + d));
        }
        for (g, d) in [(0, 0), (1, 5)] {
            assert_eq!(rows[g * (r + 2) * w + r * w + d], (1, g * w + d));
            assert_eq!(rows[g * (r + 2) * w + (r + 1) * w + d], (2, g * w + d));
        }
    }
}
