//! How a Megatron checkpoint cuts a model into ranks.

use std::ops::Range;

use super::PatchEmbed;
use super::error::ConvertError;
use super::model::{Entry, Model, Place};
use super::names::Form;
use crate::layout::NameStyle;

type Result<T> = std::result::Result<T, ConvertError>;

/// The form of the patch embedding in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PatchForm {
    /// Cut by rows over the tensor parallel ranks.
    pub(super) cut: bool,
    /// `[D, C, P, P]`, not `[D, C·P·P]`.
    pub(super) four: bool,
}

impl From<PatchEmbed> for PatchForm {
    fn from(kind: PatchEmbed) -> Self {
        Self { cut: kind == PatchEmbed::TpLinear, four: kind == PatchEmbed::Conv2d }
    }
}

/// Degrees, and what else decides what a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sharding {
    pub(super) tp: usize,
    /// Decoder layers of each pipeline stage.
    pub(super) stages: Vec<usize>,
    pub(super) ep: usize,
    /// Tensor parallel degree within an expert.
    pub(super) etp: usize,
    pub(super) patch: PatchForm,
    /// Rows of embedding and head over all ranks.
    pub(super) padded_vocab: usize,
}

/// One rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rank {
    pub(super) tp: usize,
    pub(super) pp: usize,
    pub(super) ep: usize,
}

impl Sharding {
    pub(super) fn pp(&self) -> usize {
        self.stages.len()
    }

    pub(super) fn ranks(&self) -> Vec<Rank> {
        let of_tp = |tp| (0..self.pp()).flat_map(move |pp| (0..self.ep).map(move |ep| Rank { tp, pp, ep }));
        (0..self.tp).flat_map(of_tp).collect()
    }

    pub(super) fn style(&self) -> NameStyle {
        NameStyle::of(self.pp(), self.ep)
    }

    /// The stage of an entry and the number of its layer there; none for one that this checkpoint does not have.
    pub(super) fn stage(&self, entry: &Entry) -> Option<(usize, usize)> {
        let last = self.pp() - 1;
        match entry.place {
            Place::First => Some((0, 0)),
            Place::Last => Some((last, 0)),
            Place::LaterThanFirst => (last > 0).then_some((last, 0)),
            Place::Layer(layer) => {
                let mut before = 0;
                for (stage, &layers) in self.stages.iter().enumerate() {
                    if layer < before + layers {
                        return Some((stage, layer - before));
                    }
                    before += layers;
                }
                None
            }
        }
    }

    /// The part of the experts that an entry belongs to, and its number there; none for what every part has.
    pub(super) fn expert(&self, entry: &Entry, model: &Model) -> Option<(usize, usize)> {
        let local = model.config.text.moe.as_ref()?.num_experts / self.ep;
        entry.expert.map(|expert| (expert / local, expert % local))
    }

    /// What a rank holds: entries and their names, in the order of the model.
    pub(super) fn held<'a>(&self, model: &'a Model, rank: Rank) -> Vec<(&'a Entry, String)> {
        let name = |entry: &'a Entry| {
            let (stage, layer) = self.stage(entry)?;
            let (ep, expert) = self.expert(entry, model).unwrap_or((rank.ep, 0));
            (stage == rank.pp && ep == rank.ep).then(|| (entry, entry.mcore_name(layer, expert)))
        };
        model.entries.iter().filter_map(name).collect()
    }

    /// The part of a cut tensor that a rank has, and of how many.
    pub(super) fn part(&self, entry: &Entry, rank: Rank) -> (usize, usize) {
        match (entry.form(), entry.expert) {
            (Form::Whole, _) => (0, 1),
            (Form::Patch, _) if !self.patch.cut => (0, 1),
            (_, Some(_)) => (rank.tp % self.etp, self.etp),
            _ => (rank.tp, self.tp),
        }
    }

    /// The first rank that has the same part of an entry as `rank`: others hold copies.
    pub(super) fn owner(&self, entry: &Entry, rank: Rank) -> Rank {
        let tp = self.part(entry, rank).0;
        Rank { tp, ep: if entry.expert.is_some() { rank.ep } else { 0 }, ..rank }
    }

    /// Whether Megatron can cut the model so.
    pub(super) fn check(&self, model: &Model) -> Result<()> {
        let (text, vision) = (&model.config.text, &model.config.vision);
        let even = |what, size: usize, parts: usize, help| match size.is_multiple_of(parts) {
            true => Ok(()),
            false => Err(ConvertError::Uneven { what, size, parts, help }),
        };
        if [self.tp, self.ep, self.etp, self.pp()].contains(&0) {
            return Err(ConvertError::Degrees("a parallel degree is 0; the least is 1".into()));
        }
        let tp = "choose a tensor parallel degree (--tp) that divides it";
        even("text_config.num_key_value_heads", text.num_key_value_heads, self.tp, tp)?;
        if !self.stages.iter().sum::<usize>().eq(&text.num_hidden_layers) {
            return Err(ConvertError::Degrees(format!(
                "the pipeline split {} has {} layers, the decoder {}",
                join(&self.stages),
                self.stages.iter().sum::<usize>(),
                text.num_hidden_layers
            )));
        }
        even("vision_config.num_attention_heads", vision.num_attention_heads, self.tp, tp)?;
        even("vision_config.intermediate_size", vision.intermediate_size, self.tp, tp)?;
        if self.patch.cut {
            let help = "choose another --tp, or --patch-embed linear";
            even("vision_config.hidden_size", vision.hidden_size, self.tp, help)?;
        }
        even("the padded vocabulary", self.padded_vocab, self.tp, tp)?;
        if self.padded_vocab < text.vocab_size {
            return Err(ConvertError::Degrees(format!(
                "embedding and head have {} rows, text_config.vocab_size is {}",
                self.padded_vocab, text.vocab_size
            )));
        }
        if self.padded_vocab - text.vocab_size > text.vocab_size + MOST_PADDING {
            return Err(ConvertError::Degrees(format!(
                "embedding and head would have {} rows for a vocabulary of {}; a multiple is usually 128",
                self.padded_vocab, text.vocab_size
            )));
        }
        let layers = 0..text.num_hidden_layers;
        let sparse = |layer: usize| text.moe.as_ref().is_some_and(|moe| moe.is_sparse(layer));
        if layers.clone().any(|layer| !sparse(layer)) {
            even("text_config.intermediate_size", text.intermediate_size, self.tp, tp)?;
        }
        match &text.moe {
            None if self.ep > 1 => Err(ConvertError::Degrees(format!(
                "expert parallel degree {} was given, the model has no experts; leave --ep out",
                self.ep
            ))),
            None => Ok(()),
            Some(moe) => {
                let help = "choose an expert parallel degree (--ep) that divides it";
                even("text_config.num_experts", moe.num_experts, self.ep, help)?;
                let help = "choose an expert tensor parallel degree (--etp) that divides it";
                even("text_config.moe_intermediate_size", moe.moe_intermediate_size, self.etp, help)?;
                let help = "choose an expert tensor parallel degree (--etp) that divides --tp";
                even("the tensor parallel degree", self.tp, self.etp, help)
            }
        }
    }
}

/// Layers of each stage: as the caller splits them, or evenly.
pub(super) fn stages(layers: usize, pp: Option<usize>, split: Option<&[usize]>) -> Result<Vec<usize>> {
    match split {
        None => {
            let pp = pp.unwrap_or(1).max(1);
            if !layers.is_multiple_of(pp) {
                return Err(ConvertError::Uneven {
                    what: "text_config.num_hidden_layers",
                    size: layers,
                    parts: pp,
                    help: "choose another --pp, or say how many layers each stage gets: --pipeline-split 0,12,12,12",
                });
            }
            Ok(vec![layers / pp; pp])
        }
        Some(split) => {
            if let Some(pp) = pp.filter(|pp| *pp != split.len()) {
                let detail =
                    format!("the pipeline split {} has {} stages, --pp is {pp}", join(split), split.len());
                return Err(ConvertError::Degrees(detail));
            }
            let sum = split.iter().try_fold(0_usize, |sum, stage| sum.checked_add(*stage));
            if split.is_empty() || sum != Some(layers) {
                let sum = sum.map_or("too many".into(), |sum| sum.to_string());
                return Err(ConvertError::Degrees(format!(
                    "the pipeline split {} has {sum} layers, text_config.num_hidden_layers is {layers}",
                    join(split)
                )));
            }
            Ok(split.to_vec())
        }
    }
}

/// Rows that may be filled up beyond as many as the vocabulary has.
const MOST_PADDING: usize = 1 << 20;

/// Rows of a vocabulary, filled up to a multiple of `multiple` on every rank.
pub(super) fn padded(vocab: usize, multiple: usize, tp: usize) -> Result<usize> {
    let step = multiple.checked_mul(tp).filter(|step| (1..=1 << 32).contains(step));
    let step = step.ok_or_else(|| {
        ConvertError::Degrees(format!("a vocabulary cannot be a multiple of {multiple} times {tp} rows"))
    })?;
    Ok(vocab.next_multiple_of(step))
}

/// Part `index` of `size` in `parts` equal ones.
pub(super) fn chunk(size: usize, (index, parts): (usize, usize)) -> Range<usize> {
    let part = size / parts;
    index * part..(index + 1) * part
}

pub(super) fn join(stages: &[usize]) -> String {
    stages.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_even_or_said() {
        assert_eq!(stages(36, Some(4), None).unwrap(), [9; 4]);
        assert_eq!(stages(36, None, Some(&[0, 12, 12, 12])).unwrap(), [0, 12, 12, 12]);
        assert_eq!(stages(2, Some(3), Some(&[0, 1, 1])).unwrap(), [0, 1, 1]);
        assert!(stages(36, Some(5), None).unwrap_err().to_string().contains("--pipeline-split"));
        assert!(stages(36, Some(2), Some(&[36])).is_err());
        assert!(stages(36, None, Some(&[1, 2])).is_err());
        assert!(stages(36, None, Some(&[usize::MAX, 37])).is_err());
    }

    #[test]
    fn vocabularies_of_the_release_are_padded_as_megatron_does() {
        for (tp, rows) in [(1, 151_936), (2, 152_064), (4, 152_064), (8, 152_576)] {
            assert_eq!(padded(151_936, 128, tp).unwrap(), rows);
        }
        assert!(padded(512, 0, 2).is_err());
    }
}
