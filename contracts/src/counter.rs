//! The one entry point to token lengths.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use crate::chat_template::ChatTemplate;
use crate::count::{ExplainLine, Fit, TokenCount};
use crate::embedded::{EMBEDDED_TOKENIZER, qwen3_tokenizer};
use crate::encode::EncodedSample;
use crate::frames::Frames;
use crate::grid::{ImageGrid, ImageProcessor, ImageSize};
use crate::hf_chat_template::HfChatTemplate;
use crate::jinja::{TemplateDate, TemplateSyntaxError};
use crate::llava_onevision_2::LlavaOnevision2;
use crate::model_dir::{ModelDir, ModelDirError};
use crate::profile::{Contract, DEFAULT_PROFILE, PROFILES, Profile, fetch_image_resize};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::{Reason, Sample, Verdict};

/// What decides how samples are counted; the defaults need no files.
#[derive(Debug, Clone, Default)]
pub struct CounterOptions {
    /// A profile by name; the default is [`DEFAULT_PROFILE`].
    pub profile: Option<String>,
    /// A Hugging Face model directory instead of the embedded tokenizer.
    pub model: Option<PathBuf>,
    /// Smallest image area in pixels; must agree with the model directory.
    pub min_pixels: Option<u64>,
    /// Largest image area in pixels; must agree with the model directory.
    pub max_pixels: Option<u64>,
    /// Lets the limits differ from the model directory's, or the directory have none.
    pub override_processor: bool,
    /// A resize before the processor's, to multiples of this, as `qwen_vl_utils.fetch_image` does
    /// when it is handed the processor's limits. Other limits: see [`CounterParts::images`].
    pub first_resize: Option<u32>,
    /// What templates see through `strftime_now`; the default is [`TemplateDate::DEFAULT`].
    pub template_date: Option<TemplateDate>,
}

/// Why no counter can be made: a wrong configuration, found before the first sample.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// No profile of that name.
    #[error("no profile is named {name:?}; write one of {}", profile_names())]
    UnknownProfile {
        /// The name that was given.
        name: String,
    },
    /// The profile counts with a chat template, and there is none.
    #[error("profile {profile} renders the model's chat template; give the model's folder as `model`")]
    NeedsModel {
        /// The profile.
        profile: String,
    },
    /// The model directory cannot be used.
    #[error(transparent)]
    ModelDir(#[from] ModelDirError),
    /// A number of the configuration differs from the model directory's.
    #[error(
        "{key} is {given}, but the model's image processor says {found}; the packs would not be what training \
         sees. drop {key}, or set override_processor if training overrides it too"
    )]
    Disagrees {
        /// The key.
        key: &'static str,
        /// What the configuration or the profile says.
        given: u64,
        /// What the model directory says.
        found: u64,
    },
    /// Limits that no image can keep.
    #[error("min_pixels ({min_pixels}) is above max_pixels ({max_pixels})")]
    Limits {
        /// The lower limit.
        min_pixels: u64,
        /// The upper limit.
        max_pixels: u64,
    },
    /// A zero where none can be.
    #[error("{key} must not be 0")]
    Zero {
        /// The key.
        key: &'static str,
    },
    /// The contract resizes once.
    #[error("first_resize does not belong to profile {profile}: its trainer resizes once")]
    FirstResize {
        /// The profile.
        profile: String,
    },
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer is of another model family.
    #[error("the tokenizer has no special token {token}, which contract llava-onevision-2 needs")]
    MissingToken {
        /// The token.
        token: String,
    },
    /// The chat template cannot be compiled.
    #[error("the chat template in {file} cannot be compiled: {source}")]
    Template {
        /// Where it stands.
        file: &'static str,
        /// What the template engine said.
        source: TemplateSyntaxError,
    },
}

/// Counts samples by one contract; share it between threads by reference.
pub struct Counter {
    rules: Rules,
    tokenizer: Arc<Tokenizer>,
    images: ImageProcessor,
    description: CounterDescription,
}

enum Rules {
    LlavaOnevision2(LlavaOnevision2),
    HfChatTemplate(Box<HfChatTemplate>),
}

/// How samples were counted; written into the output so that `verify` can count again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CounterDescription {
    /// The contract.
    pub contract: Contract,
    /// The profile.
    pub profile: String,
    /// The tokenizer: its file, or that it was embedded.
    pub tokenizer: String,
    /// XXH3-128 of the `tokenizer.json`.
    pub tokenizer_hash: String,
    /// The file that the chat template was read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// XXH3-128 of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// The date that the template saw, if it asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_date: Option<TemplateDate>,
    /// The token repeated for an image.
    pub image_token: String,
    /// The image arithmetic.
    pub image_processor: ImageProcessor,
    /// Things worth a line in the log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The parts of a counter, for callers that have them in hand.
pub struct CounterParts {
    /// The profile; its contract decides the rules.
    pub profile: &'static Profile,
    /// The image arithmetic.
    pub images: ImageProcessor,
    /// The tokenizer and where it is from.
    pub tokenizer: (Arc<Tokenizer>, String),
    /// The chat template and its file; needed by [`Contract::HfChatTemplate`].
    pub template: Option<(ChatTemplate, &'static str)>,
    /// The token repeated for an image, where it is not the profile's.
    pub image_token: Option<String>,
}

impl Counter {
    /// Makes a counter; everything that can be wrong is found here.
    pub fn new(options: &CounterOptions) -> Result<Self, CounterError> {
        let name = options.profile.as_deref().unwrap_or(DEFAULT_PROFILE);
        let profile =
            Profile::named(name).ok_or_else(|| CounterError::UnknownProfile { name: name.to_owned() })?;
        let model = options.model.as_deref().map(ModelDir::read).transpose()?;
        let images = image_processor(profile, model.as_ref(), options)?;
        let Some(model) = model else {
            let tokenizer = (qwen3_tokenizer()?, EMBEDDED_TOKENIZER.to_owned());
            return Self::from_parts(CounterParts {
                profile,
                images,
                tokenizer,
                template: None,
                image_token: None,
            });
        };
        let (mut template, mut image_token) = (None, None);
        if profile.contract == Contract::HfChatTemplate {
            let source = model.require_template()?;
            let date = options.template_date.unwrap_or(TemplateDate::DEFAULT);
            let compiled = ChatTemplate::new(&source.text, model.special_tokens.clone(), date)
                .map_err(|e| CounterError::Template { file: source.file, source: e })?;
            template = Some((compiled, source.file));
            image_token = model.special_tokens.get("image_token").cloned();
        }
        let tokenizer_name = model.path.join("tokenizer.json").display().to_string();
        let tokenizer = (Arc::new(model.tokenizer), tokenizer_name);
        Self::from_parts(CounterParts { profile, images, tokenizer, template, image_token })
    }

    /// Makes a counter of parts in hand.
    pub fn from_parts(parts: CounterParts) -> Result<Self, CounterError> {
        let CounterParts { profile, images, tokenizer: (tokenizer, tokenizer_name), template, image_token } =
            parts;
        let image_token = image_token.unwrap_or_else(|| profile.image_token.to_owned());
        let mut description = CounterDescription {
            contract: profile.contract,
            profile: profile.name.to_owned(),
            tokenizer: tokenizer_name,
            tokenizer_hash: tokenizer.hash().to_owned(),
            template: None,
            template_hash: None,
            template_date: None,
            image_token: image_token.clone(),
            image_processor: images,
            notes: tokenizer.note().map(str::to_owned).into_iter().collect(),
        };
        let rules = match profile.contract {
            Contract::LlavaOnevision2 => LlavaOnevision2::new(Arc::clone(&tokenizer), images.merge_size)
                .map(Rules::LlavaOnevision2)
                .map_err(|token| CounterError::MissingToken { token: token.to_owned() })?,
            Contract::HfChatTemplate => {
                let (template, file) =
                    template.ok_or_else(|| CounterError::NeedsModel { profile: profile.name.to_owned() })?;
                description.template = Some(file.to_owned());
                description.template_hash = Some(template.hash().to_owned());
                description.template_date = template.date();
                let merge = images.merge_size;
                let tokenizer = Arc::clone(&tokenizer);
                Rules::HfChatTemplate(Box::new(HfChatTemplate { tokenizer, template, image_token, merge }))
            }
        };
        Ok(Self { rules, tokenizer, images, description })
    }

    /// The length of a sample whose images have these sizes, as the training process will make it.
    ///
    /// A verdict says that the training process would fail on the sample, and why.
    pub fn count(&self, sample: &Sample, images: &[ImageSize]) -> Result<TokenCount, Verdict> {
        let grids = self.grids(images)?;
        match &self.rules {
            Rules::LlavaOnevision2(rules) => rules.count(&sample.prompts, &sample.captions, &grids),
            Rules::HfChatTemplate(rules) => rules.count(sample, &grids),
        }
    }

    /// The length of a sample of video frames, which only `llava-onevision-2` knows.
    pub fn count_frames(
        &self,
        sample: &Sample,
        images: &[ImageSize],
        frames: &Frames,
    ) -> Result<TokenCount, Verdict> {
        match &self.rules {
            Rules::LlavaOnevision2(rules) => {
                rules.count_frames(&sample.prompts, &sample.captions, &self.grids(images)?, frames)
            }
            Rules::HfChatTemplate(_) => Err(Verdict::new(
                Reason::VideoUnsupported,
                "contract hf-chat-template does not count video frames",
            )),
        }
    }

    /// The tokens of a sample, as many as [`count`](Self::count) (or, with `frames`,
    /// [`count_frames`](Self::count_frames)) says.
    ///
    /// # Errors
    /// Their verdicts, and `special-tokens-in-text` where the text itself spells image tokens.
    pub fn encode(
        &self,
        sample: &Sample,
        images: &[ImageSize],
        frames: Option<&Frames>,
    ) -> Result<EncodedSample, Verdict> {
        let count = match frames {
            Some(frames) => self.count_frames(sample, images, frames)?,
            None => self.count(sample, images)?,
        };
        let encoded = match &self.rules {
            Rules::LlavaOnevision2(rules) => rules.encode(sample, &count.grids, frames),
            Rules::HfChatTemplate(rules) => rules.encode(sample, &count.grids),
        }?;
        encoded.checked(&count)
    }

    /// The length of a conversation that was rendered already (`hf-chat-template`); under
    /// `llava-onevision-2`, where nothing is rendered whole, the text is counted as it is.
    pub fn count_rendered(&self, text: &str, images: &[ImageSize]) -> Result<TokenCount, Verdict> {
        let grids = self.grids(images)?;
        match &self.rules {
            Rules::HfChatTemplate(rules) => rules.count_rendered(text, &grids),
            Rules::LlavaOnevision2(_) => {
                TokenCount::new(self.tokenizer.count(text)? as u64, Vec::new(), self.images.merge_size)
            }
        }
    }

    /// The most rounds of a sample, from the first, that are at most `seq_len` long
    /// (`overlong: truncate-turns`), or `None` if not even the first is. Images go with the rounds
    /// that hold their placeholders; [`keep_rounds`](crate::keep_rounds) applies the answer.
    pub fn max_rounds_that_fit(
        &self,
        sample: &Sample,
        images: &[ImageSize],
        seq_len: u32,
    ) -> Result<Option<Fit>, Verdict> {
        let grids = self.grids(images)?;
        match &self.rules {
            Rules::LlavaOnevision2(rules) => rules.fit(&sample.prompts, &sample.captions, &grids, seq_len),
            Rules::HfChatTemplate(rules) => rules.fit(sample, &grids, seq_len),
        }
    }

    /// The arithmetic of one sample, line by line.
    pub fn explain(&self, sample: &Sample, images: &[ImageSize]) -> Result<Vec<ExplainLine>, Verdict> {
        let mut lines = Vec::new();
        for (number, size) in images.iter().enumerate() {
            let steps = self.images.steps(*size)?;
            let detail = format!(
                "{} -> {} px, patches {} of {} px, merged {}x{}",
                steps.original,
                steps.resized,
                steps.grid,
                self.images.patch_size,
                self.images.merge_size,
                self.images.merge_size
            );
            lines.push(ExplainLine {
                what: format!("image {}", number + 1),
                detail,
                text_tokens: None,
                image_tokens: Some(self.images.tokens(steps.grid).into()),
            });
        }
        let grids = self.grids(images)?;
        lines.extend(match &self.rules {
            Rules::LlavaOnevision2(rules) => rules.explain(&sample.prompts, &sample.captions, &grids)?,
            Rules::HfChatTemplate(rules) => rules.explain(sample, &grids)?,
        });
        Ok(lines)
    }

    /// Makes what counting needs and describing does not: see [`Tokenizer::load`]. Counting does it by itself.
    ///
    /// # Errors
    /// The tokenizer cannot be loaded.
    pub fn load(&self) -> Result<(), TokenizerError> {
        self.tokenizer.load()
    }

    /// What counts here: written into the report.
    pub fn describe(&self) -> &CounterDescription {
        &self.description
    }

    /// The contract.
    pub fn contract(&self) -> Contract {
        self.description.contract
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The image arithmetic.
    pub fn images(&self) -> &ImageProcessor {
        &self.images
    }

    fn grids(&self, images: &[ImageSize]) -> Result<Vec<ImageGrid>, Verdict> {
        images
            .iter()
            .enumerate()
            .map(|(number, size)| {
                self.images.grid(*size).map_err(|verdict| {
                    Verdict::new(verdict.reason, format!("image {}: {}", number + 1, verdict.detail))
                })
            })
            .collect()
    }
}

fn profile_names() -> String {
    PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ")
}

fn image_processor(
    profile: &Profile,
    model: Option<&ModelDir>,
    options: &CounterOptions,
) -> Result<ImageProcessor, CounterError> {
    let mut images = profile.images;
    if let Some(model) = model
        && !(options.override_processor && model.processor.is_none())
    {
        let found = model.require_processor()?;
        let side = |key, given: u32, found: Option<u32>| match found {
            Some(found) if profile.fixed_geometry && options.profile.is_some() && found != given => {
                Err(CounterError::Disagrees { key, given: given.into(), found: found.into() })
            }
            found => Ok(found.unwrap_or(given)),
        };
        images.patch_size = side("patch_size", images.patch_size, found.patch_size)?;
        images.merge_size = side("merge_size", images.merge_size, found.merge_size)?;
        for (key, given, found) in [
            ("min_pixels", options.min_pixels, found.min_pixels),
            ("max_pixels", options.max_pixels, found.max_pixels),
        ] {
            if let (Some(given), Some(found)) = (given, found)
                && given != found
                && !options.override_processor
            {
                return Err(CounterError::Disagrees { key, given, found });
            }
        }
        images.min_pixels = found.min_pixels.unwrap_or(images.min_pixels);
        images.max_pixels = found.max_pixels.unwrap_or(images.max_pixels);
    }
    images.min_pixels = options.min_pixels.unwrap_or(images.min_pixels);
    images.max_pixels = options.max_pixels.unwrap_or(images.max_pixels);
    if images.max_pixels == 0 {
        return Err(CounterError::Zero { key: "max_pixels" });
    }
    if images.min_pixels > images.max_pixels {
        return Err(CounterError::Limits { min_pixels: images.min_pixels, max_pixels: images.max_pixels });
    }
    if let Some(factor) = options.first_resize {
        if profile.contract == Contract::LlavaOnevision2 {
            return Err(CounterError::FirstResize { profile: profile.name.to_owned() });
        }
        if factor == 0 {
            return Err(CounterError::Zero { key: "first_resize" });
        }
        images.first_resize = Some(fetch_image_resize(factor, Some((images.min_pixels, images.max_pixels))));
    }
    Ok(images)
}
