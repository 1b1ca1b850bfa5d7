//! From texts and images to a sub-sample, exactly as the training process makes it.

use std::path::{Path, PathBuf};

use image::RgbImage;
use packd_contracts::{Contract, Counter, CounterOptions, Frames, ImageGrid, ImageRef, ImageSize, Sample};

use crate::batch::{IGNORE, ImagePatches, SubSample, block_positions};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::pixels::{Normalisation, patches};
use crate::resize::Resizer;

/// Tokenizer, image processor and counting contract of a model.
pub struct Encoder {
    counter: Counter,
    normalisation: Normalisation,
    image_token: u32,
    fold: Option<Fold>,
    resizer: Resizer,
}

/// What [`Encoder::new`] needs beyond the model.
#[derive(Debug, Clone, Default)]
pub struct EncoderOptions {
    /// A Hugging Face directory with tokenizer and image processor; the model's own if it has them, else those that
    /// are built into packd.
    pub tokenizer: Option<PathBuf>,
    /// A profile by name; the default is the one of the model's patch and merge sizes.
    pub profile: Option<String>,
    /// Maps token ids beyond the model's vocabulary into it, for models that are tiny and mean nothing.
    pub fold_ids: bool,
    /// Whose arithmetic images are resized by.
    pub resizer: Resizer,
}

/// Ids of a tokenizer that a small vocabulary does not hold.
struct Fold {
    image_token: u32,
    vocab_size: u32,
}

impl Encoder {
    /// An encoder for the model in `dir`.
    ///
    /// # Errors
    /// What [`Counter::new`] says; [`ModelError::Config`] when tokenizer or profile are another model's.
    pub fn new(dir: &Path, config: &ModelConfig, options: &EncoderOptions) -> Result<Self> {
        let own = dir.join("tokenizer.json").is_file().then(|| dir.to_owned());
        let model = options.tokenizer.clone().or(own);
        let (patch, merge) = (config.vision.patch_size, config.vision.spatial_merge_size);
        let profile = options.profile.clone().unwrap_or(format!("llava-onevision-2-p{patch}m{merge}"));
        let normalisation = model.as_deref().map_or(Ok(Normalisation::CLIP), Normalisation::read)?;
        let counter =
            Counter::new(&CounterOptions { profile: Some(profile), model, ..CounterOptions::default() })?;
        let wrong = |detail| ModelError::Config { name: "the image processor".into(), detail };
        let images = counter.images();
        if (images.patch_size as usize, images.merge_size as usize) != (patch, merge) {
            return Err(wrong(format!(
                "it makes patches of {} merged by {}, the model takes {patch} by {merge}",
                images.patch_size, images.merge_size
            )));
        }
        let image_token = match counter.tokenizer().encode(&counter.describe().image_token)?.as_slice() {
            [id] => *id,
            _ => return Err(wrong(format!("{} is no token", counter.describe().image_token))),
        };
        let fold = options.fold_ids.then_some(Fold {
            image_token: config.image_token_id,
            vocab_size: config.text.vocab_size as u32,
        });
        if fold.is_none() && image_token != config.image_token_id {
            return Err(ModelError::Config {
                name: "the tokenizer".into(),
                detail: format!(
                    "its image token is {image_token}, the model's {}; is it the model's own? (a tiny test model \
                     runs with --fold-ids)",
                    config.image_token_id
                ),
            });
        }
        Ok(Self { counter, normalisation, image_token, fold, resizer: options.resizer })
    }

    /// What counts.
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// The sub-sample of these turns and images.
    ///
    /// # Errors
    /// A verdict where the training process would refuse the sample.
    pub fn sub_sample(&self, sample: &Sample, images: &[RgbImage]) -> Result<SubSample> {
        self.with_frames(sample, images, None)
    }

    /// Like [`sub_sample`](Self::sub_sample), with patch positions and frame rate where the sample has them.
    ///
    /// As in the trainer, images with positions become one grid row of so many frames, as large as the first.
    ///
    /// # Errors
    /// A verdict where the training process would refuse the sample.
    pub fn with_frames(
        &self,
        sample: &Sample,
        images: &[RgbImage],
        frames: Option<&Frames>,
    ) -> Result<SubSample> {
        let sizes: Vec<_> =
            images.iter().map(|image| ImageSize::new(image.width(), image.height())).collect();
        let encoded = self.counter.encode(sample, &sizes, frames)?;
        let labels = |(&id, &is_trained): (&u32, &bool)| if is_trained { i64::from(id) } else { IGNORE };
        let input_ids: Vec<u32> = encoded.input_ids.iter().map(|&id| self.id(id)).collect();
        let labels = input_ids.iter().zip(&encoded.is_trained).map(labels).collect();
        let mut images: Vec<ImagePatches> =
            images.iter().map(|image| self.image(image)).collect::<Result<_>>()?;
        let positions = frames.filter(|frames| frames.positions.iter().any(Option::is_some));
        if let Some(frames) = positions {
            images = vec![one_row(&images, frames, self.counter.images().merge_size)?];
        }
        Ok(SubSample { input_ids, labels, images })
    }

    /// An image as the vision tower takes it.
    ///
    /// # Errors
    /// A verdict where the processor refuses the image's size.
    pub fn image(&self, image: &RgbImage) -> Result<ImagePatches> {
        patches(image, self.counter.images(), &self.normalisation, self.resizer)
    }

    /// The tokens of a text as it stands, without a conversation around it.
    ///
    /// # Errors
    /// [`ModelError::Verdict`] when it cannot be tokenized, [`ModelError::Batch`] when it is empty.
    pub fn text(&self, text: &str) -> Result<SubSample> {
        let ids = self.counter.tokenizer().encode(text)?;
        if ids.is_empty() {
            return Err(ModelError::Batch("a text without tokens has no logits".into()));
        }
        Ok(SubSample::text(ids.into_iter().map(|id| self.id(id)).collect()))
    }

    /// A question as the training process writes it, up to where the answer begins. Images stand where it says
    /// `<image>`, else before it.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a profile of another contract; a verdict where the training process would refuse it.
    pub fn question(&self, question: &str, images: &[RgbImage]) -> Result<SubSample> {
        if self.counter.contract() != Contract::LlavaOnevision2 {
            let detail = "prompts are written by the llava-onevision-2 profiles".into();
            return Err(ModelError::Config { name: "--profile".into(), detail });
        }
        let sample = Sample {
            prompts: vec![question.to_owned()],
            captions: vec![String::new()],
            images: (0..images.len()).map(|number| ImageRef::Path(number.to_string())).collect(),
            ..Sample::default()
        };
        let mut sub = self.sub_sample(&sample, images)?;
        // An empty answer is the token that ends it.
        sub.input_ids.pop();
        sub.labels.pop();
        Ok(sub)
    }

    /// The text of token ids; folded ids have none.
    ///
    /// # Errors
    /// [`ModelError::Config`] for an unknown id.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.counter
            .tokenizer()
            .decode(ids)
            .map_err(|error| ModelError::Config { name: "the tokenizer".into(), detail: error.to_string() })
    }

    fn id(&self, id: u32) -> u32 {
        match &self.fold {
            None => id,
            Some(fold) if id == self.image_token => fold.image_token,
            Some(fold) => {
                // One id less than there are, and the image token is jumped over.
                let folded = id % (fold.vocab_size - 1);
                folded + u32::from(folded >= fold.image_token)
            }
        }
    }
}

/// The frames of a video as one grid row (trainer, `encode_multi_mix_qa`): positions are row-major inside each canvas.
fn one_row(images: &[ImagePatches], frames: &Frames, merge: u32) -> Result<ImagePatches> {
    let first = images.first().map(ImagePatches::grid).unwrap_or(ImageGrid { t: 0, h: 0, w: 0 });
    let grid = ImageGrid { t: images.len() as u32, ..first };
    let rows: Vec<f32> = images.iter().flat_map(|image| image.rows().iter().copied()).collect();
    let given: Vec<[i64; 3]> = frames.positions.iter().flatten().flatten().copied().collect();
    let place = |[t, h, w]: [u32; 3]| {
        let position = given.get(((t * grid.h + h) * grid.w + w) as usize)?;
        let [t, h, w] = position.map(|value| u32::try_from(value).ok());
        Some([t?, h?, w?])
    };
    let positions: Option<Vec<[u32; 3]>> = block_positions(grid, merge)?.into_iter().map(place).collect();
    let positions = positions.ok_or_else(|| {
        ModelError::Batch(format!(
            "{} patch positions for a grid of {grid}, or one out of range",
            given.len()
        ))
    })?;
    ImagePatches::with_positions(rows, grid, positions)
}
