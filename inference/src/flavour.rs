//! Constants that Megatron's training code has where transformers has `config.json`.

use crate::config::VisionConfig;

/// Whose constants a model is run with. The weights are the same; the outputs differ a little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// Those of `config.json`, as transformers does it.
    #[default]
    HuggingFace,
    /// Those that Megatron's LLaVA-OneVision-2 has in its code, whatever `config.json` says: norms of the vision tower
    /// add 1e-4 before the first layer, 1e-5 in the layers and 1e-6 in the adapter, and its rotary base is 10,000.
    Megatron,
}

impl std::fmt::Display for Flavour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::HuggingFace => "Hugging Face",
            Self::Megatron => "Megatron",
        })
    }
}

/// What the vision tower's norms add to the variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct VisionEps {
    pub(crate) before: f64,
    pub(crate) layers: f64,
    pub(crate) merger: f64,
}

impl Flavour {
    pub(crate) fn vision_eps(self, config: &VisionConfig) -> VisionEps {
        match self {
            Self::HuggingFace => {
                let eps = config.layer_norm_eps;
                VisionEps { before: eps, layers: eps, merger: eps }
            }
            Self::Megatron => VisionEps { before: 1e-4, layers: 1e-5, merger: 1e-6 },
        }
    }

    pub(crate) fn vision_theta(self, config: &VisionConfig) -> f64 {
        match self {
            Self::HuggingFace => config.rope_theta,
            Self::Megatron => 10_000.0,
        }
    }
}
