//! `<image>` and `<video>` in the text, and the trainer's repair when their number is off.
//!
//! The steps a and c of the trainer's encoder: first every `<video>` becomes one `<image>` per
//! image, then, if placeholders and images differ in number, all placeholders are deleted and as
//! many as there are images stand before the first user turn.

use std::borrow::Cow;

use crate::record::IMAGE;
use crate::{Reason, Sample, Verdict};

/// Stands for all images of a sample at once.
pub const VIDEO: &str = "<video>";

/// The turns of a sample as the trainer lays them out: one `<image>` per image, no `<video>`.
pub(crate) struct LaidOut<'a> {
    pub(crate) prompts: Vec<Cow<'a, str>>,
    pub(crate) captions: Vec<Cow<'a, str>>,
    /// The text differs from the sample's.
    pub(crate) changed: bool,
}

/// How many `<image>` the trainer finds in a sample, every `<video>` counted as all images.
pub fn count_placeholders(sample: &Sample) -> usize {
    let images = sample.images.len();
    sample.prompts.iter().chain(&sample.captions).map(|text| count_in(text, images)).sum()
}

/// The trainer's own repair of a sample whose placeholders and images differ in number
/// (`placeholder_mismatch: repair`). Returns whether the text was changed.
///
/// Fails where the trainer fails: placeholders or `<video>` without images, images without a turn.
pub fn repair_placeholders(sample: &mut Sample) -> Result<bool, Verdict> {
    let laid_out = lay_out(&sample.prompts, &sample.captions, sample.images.len())?;
    if !laid_out.changed {
        return Ok(false);
    }
    let owned = |texts: Vec<Cow<'_, str>>| texts.into_iter().map(Cow::into_owned).collect::<Vec<_>>();
    let (prompts, captions) = (owned(laid_out.prompts), owned(laid_out.captions));
    sample.prompts = prompts;
    sample.captions = captions;
    Ok(true)
}

/// Keeps the first `rounds` rounds and the images that their placeholders stand for, as the
/// trainer does with a sample that is too long.
pub fn keep_rounds(sample: &mut Sample, rounds: usize) {
    let placeholders = placeholders_of_rounds(&sample.prompts, &sample.captions, sample.images.len(), rounds);
    sample.prompts.truncate(rounds);
    sample.captions.truncate(rounds);
    sample.images.truncate(placeholders);
}

/// `<image>` in the first `rounds` rounds.
pub(crate) fn placeholders_of_rounds(
    prompts: &[String],
    captions: &[String],
    images: usize,
    rounds: usize,
) -> usize {
    prompts.iter().take(rounds).chain(captions.iter().take(rounds)).map(|text| count_in(text, images)).sum()
}

/// `<image>` in the first `rounds` rounds; `<video>` is text like any other.
pub(crate) fn images_of_rounds(sample: &Sample, rounds: usize) -> usize {
    placeholders_of_rounds(&sample.prompts, &sample.captions, 0, rounds)
}

/// Lays the turns out for `images` images; text that needs no change is borrowed.
pub(crate) fn lay_out<'a>(
    prompts: &'a [String],
    captions: &'a [String],
    images: usize,
) -> Result<LaidOut<'a>, Verdict> {
    if prompts.len() != captions.len() {
        return Err(Verdict::new(
            Reason::TurnOrder,
            format!("{} user turns and {} assistant turns", prompts.len(), captions.len()),
        ));
    }
    let mut texts = LaidOut {
        prompts: prompts.iter().map(|text| expand_videos(text, images)).collect(),
        captions: captions.iter().map(|text| expand_videos(text, images)).collect(),
        changed: false,
    };
    let found = texts.count(IMAGE);
    if images == 0 {
        if found > 0 {
            return Err(mismatch(found, 0));
        }
        if texts.count(VIDEO) > 0 {
            return Err(Verdict::new(
                Reason::VideoMissing,
                "<video> stands in the text, but there are no images",
            ));
        }
    } else if found != images {
        texts.move_to_front(images)?;
    }
    let changed = texts.all().any(|text| matches!(text, Cow::Owned(_)));
    texts.changed = changed;
    Ok(texts)
}

impl LaidOut<'_> {
    fn all(&self) -> impl Iterator<Item = &Cow<'_, str>> {
        self.prompts.iter().chain(&self.captions)
    }

    fn count(&self, needle: &str) -> usize {
        self.all().map(|text| text.matches(needle).count()).sum()
    }

    fn move_to_front(&mut self, images: usize) -> Result<(), Verdict> {
        for text in self.prompts.iter_mut().chain(&mut self.captions) {
            if text.contains(IMAGE) {
                *text = Cow::Owned(text.replace(IMAGE, ""));
            }
        }
        let Some(first) = self.prompts.first_mut() else {
            return Err(Verdict::new(
                Reason::NoTurns,
                format!("{images} images, but no user turn to hold them"),
            ));
        };
        let marks = vec![IMAGE; images].join("\n");
        *first = Cow::Owned(format!("{marks}\n{}", first.trim_start_matches('\n')));
        // deleting can join a new placeholder out of the text around an old one
        let found = self.count(IMAGE);
        if found == images { Ok(()) } else { Err(mismatch(found, images)) }
    }
}

/// The verdict on placeholders that do not match the images.
pub(crate) fn mismatch(placeholders: usize, images: usize) -> Verdict {
    Verdict::new(
        Reason::PlaceholderMismatch,
        format!("{placeholders} <image> placeholders in the text, {images} images"),
    )
}

fn count_in(text: &str, images: usize) -> usize {
    let videos = if images > 0 && text.contains(VIDEO) { text.matches(VIDEO).count() } else { 0 };
    text.matches(IMAGE).count() + videos * images
}

fn expand_videos(text: &str, images: usize) -> Cow<'_, str> {
    if images > 0 && text.contains(VIDEO) {
        Cow::Owned(text.replace(VIDEO, &vec![IMAGE; images].join("\n")))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImageRef;

    fn sample(prompts: &[&str], captions: &[&str], images: usize) -> Sample {
        let owned = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect();
        Sample {
            prompts: owned(prompts),
            captions: owned(captions),
            images: vec![ImageRef::Path("a.png".into()); images],
            ..Sample::default()
        }
    }

    fn repaired(prompts: &[&str], captions: &[&str], images: usize) -> Result<Vec<String>, Reason> {
        let mut it = sample(prompts, captions, images);
        repair_placeholders(&mut it).map_err(|verdict| verdict.reason)?;
        assert_eq!(count_placeholders(&it), images);
        Ok(it.prompts.into_iter().chain(it.captions).collect())
    }

    #[test]
    fn matching_text_is_left_alone() {
        let mut it = sample(&["<image> a <image>"], &["b"], 2);
        assert_eq!(repair_placeholders(&mut it), Ok(false));
        assert_eq!(it, sample(&["<image> a <image>"], &["b"], 2));
    }

    #[test]
    fn placeholders_move_before_the_first_user_turn() {
        assert_eq!(repaired(&["\n\nlook"], &["b"], 2).unwrap(), ["<image>\n<image>\nlook", "b"]);
        assert_eq!(
            repaired(&["a <image> b", "c"], &["<image>d", "e"], 1).unwrap(),
            ["<image>\na  b", "c", "d", "e"]
        );
    }

    #[test]
    fn a_video_stands_for_all_images() {
        assert_eq!(repaired(&["<video>\nq"], &["a"], 2).unwrap(), ["<image>\n<image>\nq", "a"]);
        assert_eq!(
            repaired(&["<video> and <video>"], &["a"], 2).unwrap(),
            ["<image>\n<image>\n and \n", "a"]
        );
    }

    #[test]
    fn what_the_trainer_cannot_repair_is_refused() {
        assert_eq!(repaired(&["<image>"], &["a"], 0), Err(Reason::PlaceholderMismatch));
        assert_eq!(repaired(&["<video>"], &["a"], 0), Err(Reason::VideoMissing));
        assert_eq!(repaired(&["a", "b"], &["c"], 0), Err(Reason::TurnOrder));
        assert_eq!(repaired(&[], &[], 1), Err(Reason::NoTurns));
        assert_eq!(repaired(&["<im<image>age>"], &["a"], 2), Err(Reason::PlaceholderMismatch));
    }

    #[test]
    fn images_leave_with_their_rounds() {
        let mut it = sample(&["<image> a", "b <image><image>"], &["x", "y"], 3);
        keep_rounds(&mut it, 1);
        assert_eq!(it, sample(&["<image> a"], &["x"], 1));
    }
}
