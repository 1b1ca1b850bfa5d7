//! The tensors of a model, by its configuration.

use super::names::{self, Form, Row, When};
use crate::config::ModelConfig;

/// A size that `config.json` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Hidden,
    Vocab,
    Queries,
    Keys,
    HeadDim,
    Mlp,
    Experts,
    ExpertMlp,
    VisionHidden,
    VisionQkvRows,
    VisionMlp,
    Channels,
    PatchSide,
    Merged,
}

impl Size {
    fn of(self, config: &ModelConfig) -> usize {
        let (text, vision) = (&config.text, &config.vision);
        match self {
            Self::Hidden => text.hidden_size,
            Self::Vocab => text.vocab_size,
            Self::Queries => text.num_attention_heads * text.head_dim,
            Self::Keys => text.num_key_value_heads * text.head_dim,
            Self::HeadDim => text.head_dim,
            Self::Mlp => text.intermediate_size,
            Self::Experts => text.moe.as_ref().map_or(0, |moe| moe.num_experts),
            Self::ExpertMlp => text.moe.as_ref().map_or(0, |moe| moe.moe_intermediate_size),
            Self::VisionHidden => vision.hidden_size,
            Self::VisionQkvRows => 3 * vision.hidden_size,
            Self::VisionMlp => vision.intermediate_size,
            Self::Channels => vision.num_channels,
            Self::PatchSide => vision.patch_size,
            Self::Merged => vision.spatial_merge_size.pow(2) * vision.hidden_size,
        }
    }
}

/// Which stage a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    First,
    /// A decoder layer, counted over all stages.
    Layer(usize),
    Last,
    /// Last, and only when that is not the first too.
    LaterThanFirst,
}

/// A tensor as Megatron has it before it is cut, and the Hugging Face tensors that it is made of.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    row: &'static Row,
    pub(super) place: Place,
    /// Layer of the vision tower.
    vision_layer: Option<usize>,
    /// Counted over all ranks.
    pub(super) expert: Option<usize>,
    /// Names and shapes in Hugging Face.
    pub(super) parts: Vec<(String, Vec<usize>)>,
}

impl Entry {
    pub(super) fn form(&self) -> Form {
        self.row.form
    }

    /// The name in the file of a rank, by the number that layer and expert have there.
    pub(super) fn mcore_name(&self, layer: usize, expert: usize) -> String {
        fill(self.row.mcore, self.vision_layer.or(Some(layer)), Some(expert))
    }

    /// Rows and columns of a part: the first size, and the product of the others.
    pub(super) fn matrix(&self, part: usize) -> (usize, usize) {
        let shape = &self.parts[part].1;
        (shape[0], shape[1..].iter().product())
    }
}

fn fill(name: &str, layer: Option<usize>, expert: Option<usize>) -> String {
    let number = |number: Option<usize>| number.unwrap_or(0).to_string();
    name.replace("{l}", &number(layer)).replace("{e}", &number(expert))
}

/// All tensors of a model, in an order that is the same for every layout.
pub(super) struct Model {
    pub(super) config: ModelConfig,
    pub(super) entries: Vec<Entry>,
}

impl Model {
    pub(super) fn new(config: ModelConfig) -> Self {
        let mut list = List { config: &config, entries: Vec::new() };
        list.add(names::VISION, Place::First, None, None);
        for layer in 0..config.vision.num_hidden_layers {
            list.add(names::VISION_LAYER, Place::First, Some(layer), None);
        }
        list.add(names::ADAPTER, Place::First, None, None);
        list.add(names::EMBEDDING, Place::First, None, None);
        for layer in 0..config.text.num_hidden_layers {
            let place = Place::Layer(layer);
            list.add(names::ATTENTION, place, None, None);
            match config.text.moe.as_ref().filter(|moe| moe.is_sparse(layer)) {
                None => list.add(names::DENSE_MLP, place, None, None),
                Some(moe) => {
                    list.add(names::ROUTER, place, None, None);
                    for expert in 0..moe.num_experts {
                        list.add(names::EXPERT, place, None, Some(expert));
                    }
                }
            }
        }
        list.add(names::FINAL_NORM, Place::Last, None, None);
        match config.tie_word_embeddings {
            false => list.add(names::HEAD, Place::Last, None, None),
            true => list.add(names::TIED_HEAD, Place::LaterThanFirst, None, None),
        }
        let entries = list.entries;
        Self { config, entries }
    }

    /// Names and shapes of the Hugging Face tensors, each once.
    pub(super) fn hf_tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let own = self.entries.iter().filter(|entry| entry.place != Place::LaterThanFirst);
        own.flat_map(|entry| entry.parts.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())))
    }
}

struct List<'a> {
    config: &'a ModelConfig,
    entries: Vec<Entry>,
}

impl List<'_> {
    fn add(
        &mut self,
        rows: &'static [Row],
        place: Place,
        vision_layer: Option<usize>,
        expert: Option<usize>,
    ) {
        let config = self.config;
        let layer = match place {
            Place::Layer(layer) => Some(layer),
            _ => vision_layer,
        };
        let counts = |row: &&'static Row| match row.when {
            When::Always => true,
            When::TextBias => config.text.attention_bias,
            When::VisionNormBias => !config.vision.rms_norm,
        };
        self.entries.extend(rows.iter().filter(counts).map(|row| {
            let names = row.hf.iter().map(|name| fill(name, layer, expert));
            let shapes = row.shapes.iter().map(|sizes| sizes.iter().map(|size| size.of(config)).collect());
            Entry { row, place, vision_layer, expert, parts: names.zip(shapes).collect() }
        }));
    }
}
