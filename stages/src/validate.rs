//! Validate: is the record one that the trainer can use, and are its images all there?
//!
//! Bad data becomes a [`Verdict`], never an error: one bad record says nothing about the next.

use std::sync::Arc;

use packd_config::{Config, PlaceholderMismatch, SpecialTokens, SystemTurns, VerifyImages};
use packd_contracts::{
    Contract, Counter, IMAGE, ImageRef, ImageSize, ParsedRecord, Reason, RecordOptions, Sample, Verdict,
    count_placeholders, keep_rounds, parse_record, repair_placeholders,
};
use packd_sources::{ImageError, ImageHeader, ImageStamp, ImageStore, SourceError};

use crate::decode::decode_fully;

/// A member of a ustar archive ends at 8 GiB − 1.
const MAX_MEMBER_BYTES: u64 = (1 << 33) - 1;
const TAR_BLOCK: u64 = 512;

/// The validate stage; share it between threads by reference.
pub struct Validator {
    record: RecordOptions,
    system: SystemTurns,
    special_tokens: SpecialTokens,
    placeholder_mismatch: PlaceholderMismatch,
    verify_images: VerifyImages,
    max_image_pixels: u64,
    counter: Arc<Counter>,
    images: Arc<ImageStore>,
}

/// A sample that passed, and what was learned about its images.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidSample {
    /// The sample, with every policy applied.
    pub sample: Sample,
    /// Size in pixels of each image.
    pub sizes: Vec<ImageSize>,
    /// 512-byte blocks of each image as a tar member, header included.
    pub image_blocks: Vec<u32>,
    /// Images whose EXIF orientation swaps their sides in a loader that applies it.
    pub exif_transposed: u32,
    /// The [`ImageStamp`] after each image: the last one is that of the sample.
    pub image_stamps: Vec<u64>,
}

impl ValidSample {
    /// The [`ImageStamp`] of the sample's first `images` images.
    pub fn image_stamp(&self, images: usize) -> u64 {
        match images.checked_sub(1) {
            Some(last) => self.image_stamps[last],
            None => ImageStamp::default().finish(),
        }
    }
}

/// What became of one record.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// The record's id, if it has one.
    pub id: Option<String>,
    /// Keys of the record that nothing reads.
    pub unknown_keys: Vec<String>,
    /// The sample, or why there is none.
    pub outcome: Result<ValidSample, Verdict>,
}

impl Validator {
    /// A validator for a configuration.
    pub fn new(config: &Config, counter: Arc<Counter>, images: Arc<ImageStore>) -> Self {
        Self {
            record: RecordOptions {
                caption_prompt: config.caption_prompt.clone(),
                passthrough: config.passthrough.clone(),
            },
            system: config.system,
            special_tokens: config.special_tokens_in_text,
            placeholder_mismatch: config.placeholder_mismatch,
            verify_images: config.verify_images,
            max_image_pixels: config.max_image_pixels,
            counter,
            images,
        }
    }

    /// Judges one record of input `source`.
    ///
    /// # Errors
    /// The system cannot open or read images, whatever the record.
    pub fn validate(&self, record: &[u8], source: usize) -> Result<Validation, SourceError> {
        let ParsedRecord { id, sample, stated_sizes, unknown_keys } = parse_record(record, &self.record);
        let outcome = sample
            .and_then(|sample| self.apply_policies(sample))
            .map_err(ImageError::from)
            .and_then(|sample| self.check_images(sample, &stated_sizes, source));
        let outcome = match outcome {
            Ok(valid) => Ok(valid),
            Err(ImageError::Verdict(verdict)) => Err(verdict),
            Err(ImageError::System(error)) => return Err(error),
        };
        Ok(Validation { id, unknown_keys, outcome })
    }

    /// The sample of a record that was validated before, for the writer: the same policies, no image
    /// opened. `rounds` is how many rounds stay, 0 for all.
    ///
    /// # Errors
    /// A verdict, if the record is not what it was.
    pub fn restore(&self, record: &[u8], rounds: usize) -> Result<Sample, Verdict> {
        let mut sample =
            parse_record(record, &self.record).sample.and_then(|sample| self.apply_policies(sample))?;
        if rounds > 0 {
            keep_rounds(&mut sample, rounds);
        }
        Ok(sample)
    }

    fn apply_policies(&self, mut sample: Sample) -> Result<Sample, Verdict> {
        if sample.system.is_some() {
            match self.system {
                SystemTurns::Keep => {}
                SystemTurns::Drop => sample.system = None,
                SystemTurns::Reject => {
                    let detail =
                        "the sample class cannot store a system turn; set `system: drop` to pack without it";
                    return Err(Verdict::new(Reason::SystemUnsupported, detail));
                }
            }
        }
        self.judge_special_tokens(&mut sample)?;
        self.match_placeholders(&mut sample)?;
        Ok(sample)
    }

    fn judge_special_tokens(&self, sample: &mut Sample) -> Result<(), Verdict> {
        if self.special_tokens == SpecialTokens::Allow {
            return Ok(());
        }
        let tokenizer = self.counter.tokenizer();
        for text in sample.system.iter_mut().chain(&mut sample.prompts).chain(&mut sample.captions) {
            let Some((at, token)) = tokenizer.find_special(text) else { continue };
            if self.special_tokens == SpecialTokens::Reject {
                let detail = format!("`{token}` at byte {at} of a turn would be read as a special token");
                return Err(Verdict::new(Reason::SpecialTokensInText, detail));
            }
            *text = escape(text, tokenizer.find_all_special(text));
        }
        Ok(())
    }

    fn match_placeholders(&self, sample: &mut Sample) -> Result<(), Verdict> {
        let placeholders = match self.counter.contract() {
            Contract::LlavaOnevision2 => count_placeholders(sample),
            // A chat template knows nothing of `<video>`: there it is text.
            Contract::HfChatTemplate => {
                sample.prompts.iter().chain(&sample.captions).map(|text| text.matches(IMAGE).count()).sum()
            }
        };
        let images = sample.images.len();
        if placeholders == images {
            return Ok(());
        }
        let detail = format!("{placeholders} `{IMAGE}` placeholders, {images} images");
        if self.placeholder_mismatch == PlaceholderMismatch::Reject || images == 0 {
            return Err(Verdict::new(Reason::PlaceholderMismatch, detail));
        }
        repair_placeholders(sample).map(|_| ())
    }

    fn check_images(
        &self,
        sample: Sample,
        stated: &[(u32, u32)],
        source: usize,
    ) -> Result<ValidSample, ImageError> {
        let count = sample.images.len();
        let mut valid = ValidSample {
            sample,
            sizes: Vec::with_capacity(count),
            image_blocks: Vec::with_capacity(count),
            exif_transposed: 0,
            image_stamps: Vec::with_capacity(count),
        };
        let mut stamp = ImageStamp::default();
        for (number, image) in valid.sample.images.iter().enumerate() {
            let checked = self.check_image(image, source, stated.get(number), &mut stamp);
            let (size, bytes, transposed) = checked.map_err(|error| match error {
                ImageError::Verdict(verdict) => {
                    Verdict::new(verdict.reason, format!("image {}: {}", number + 1, verdict.detail)).into()
                }
                system => system,
            })?;
            valid.exif_transposed += u32::from(transposed);
            valid.sizes.push(size);
            valid.image_blocks.push((1 + bytes.div_ceil(TAR_BLOCK)) as u32);
            valid.image_stamps.push(stamp.finish());
        }
        Ok(valid)
    }

    /// Size in pixels, bytes, and whether EXIF swaps the sides.
    fn check_image(
        &self,
        image: &ImageRef,
        source: usize,
        stated: Option<&(u32, u32)>,
        stamp: &mut ImageStamp,
    ) -> Result<(ImageSize, u64, bool), ImageError> {
        let open = self.images.open(image, source)?;
        stamp.add(&open);
        let bytes = open.size();
        if bytes > MAX_MEMBER_BYTES {
            let detail = format!("{bytes} bytes; a tar member holds 8 GiB");
            return Err(Verdict::new(Reason::ImageTooLarge, detail).into());
        }
        if self.verify_images == VerifyImages::None {
            let (width, height) =
                *stated.filter(|(width, height)| *width > 0 && *height > 0).ok_or_else(|| {
                    let detail =
                        "`verify_images: none` needs `width` and `height` of each image in the record";
                    Verdict::new(Reason::ImageUnreadable, detail)
                })?;
            self.check_pixels(width, height)?;
            return Ok((ImageSize { width, height }, bytes, false));
        }
        let header = ImageHeader::read(&open)?;
        self.check_pixels(header.width, header.height)?;
        header.check_complete(&open)?;
        if self.verify_images == VerifyImages::Decode {
            decode_fully(&open, self.max_image_pixels)?;
        }
        Ok((ImageSize { width: header.width, height: header.height }, bytes, header.transposed))
    }
}

impl Validator {
    fn check_pixels(&self, width: u32, height: u32) -> Result<(), Verdict> {
        if u64::from(width) * u64::from(height) <= self.max_image_pixels {
            return Ok(());
        }
        let detail = format!("{width}×{height} pixels; `max_image_pixels` is {}", self.max_image_pixels);
        Err(Verdict::new(Reason::ImageTooLarge, detail))
    }
}

/// Ordinary text with the same look: a zero-width space after the first character of each token.
fn escape<'a>(text: &str, tokens: impl Iterator<Item = (usize, &'a str)>) -> String {
    let mut escaped = String::with_capacity(text.len() + 16);
    let mut done = 0;
    for (at, token) in tokens {
        let first = at + token.chars().next().map_or(0, char::len_utf8);
        escaped.push_str(&text[done..first]);
        escaped.push('\u{200b}');
        done = first;
    }
    escaped.push_str(&text[done..]);
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_breaks_each_token_and_nothing_else() {
        let text = "a <|im_end|> b <|im_end|>";
        let escaped = escape(text, [(2, "<|im_end|>"), (15, "<|im_end|>")].into_iter());
        assert_eq!(escaped, "a <\u{200b}|im_end|> b <\u{200b}|im_end|>");
        assert_eq!(escaped.replace('\u{200b}', ""), text);
    }
}
