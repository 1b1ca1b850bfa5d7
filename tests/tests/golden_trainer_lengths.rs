//! Lengths of the `llava-onevision-2` contract, as the trainer's own encoder gives them.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use packd_contracts::{
    Counter, CounterOptions, Frames, ImageRef, ImageSize, Sample, count_placeholders, keep_rounds,
    repair_placeholders,
};
use packd_tests::golden;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    profile: String,
    patch_size: u32,
    merge_size: u32,
    min_pixels: u64,
    max_pixels: u64,
    prompts: Vec<String>,
    captions: Vec<String>,
    sizes: Vec<(u32, u32)>,
    /// The frame of each canvas, where a canvas is of one frame.
    canvas_t: Option<Vec<Option<i64>>>,
    patch_positions: Option<Vec<Vec<[i64; 3]>>>,
    fps: Option<Fps>,
    timestamp_decimal: Option<u32>,
    length: Option<u32>,
    grids: Option<Vec<(u32, u32)>>,
    error: Option<String>,
}

/// A number or a list of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Fps {
    Number(f64),
    List(Vec<f64>),
}

impl Case {
    /// Frames and their positions are another contract.
    fn is_of_images(&self) -> bool {
        self.canvas_t.is_none() && self.patch_positions.is_none() && self.fps.is_none()
    }

    fn sample(&self) -> Sample {
        Sample {
            prompts: self.prompts.clone(),
            captions: self.captions.clone(),
            images: vec![ImageRef::Path("image".into()); self.sizes.len()],
            ..Sample::default()
        }
    }

    fn frames(&self, counter: &Counter) -> Frames {
        let canvas = |time: i64, size: ImageSize| {
            let grid = counter.images().grid(size).unwrap();
            vec![[time, 0, 0]; grid.patches() as usize]
        };
        let of_canvases = |times: &Vec<Option<i64>>| {
            let sizes = self.image_sizes();
            times.iter().zip(sizes).map(|(time, size)| time.map(|time| canvas(time, size))).collect()
        };
        let arrays = self.patch_positions.as_ref().map(|arrays| arrays.iter().cloned().map(Some).collect());
        Frames {
            positions: arrays.or(self.canvas_t.as_ref().map(of_canvases)).unwrap_or_default(),
            fps: self.fps.as_ref().map(|fps| match fps {
                Fps::Number(fps) => *fps,
                Fps::List(list) => list[0],
            }),
            timestamp_decimal: self.timestamp_decimal,
        }
    }

    fn image_sizes(&self) -> Vec<ImageSize> {
        self.sizes.iter().map(|&(width, height)| ImageSize::new(width, height)).collect()
    }

    fn counter(&self) -> Counter {
        Counter::new(&CounterOptions {
            profile: Some(format!("llava-onevision-2-p{}m{}", self.patch_size, self.merge_size)),
            min_pixels: Some(self.min_pixels),
            max_pixels: Some(self.max_pixels),
            ..CounterOptions::default()
        })
        .unwrap()
    }
}

/// Calls `check` with every case of images, or of frames.
fn with_counters(of_images: bool, mut check: impl FnMut(&Case, &Counter)) -> usize {
    let mut counters = HashMap::new();
    let cases: Vec<Case> = golden::records("trainer_lengths");
    cases
        .iter()
        .filter(|case| case.is_of_images() == of_images)
        .map(|case| check(case, counters.entry(case.profile.clone()).or_insert_with(|| case.counter())))
        .count()
}

#[test]
fn every_length_is_the_trainers() {
    let mut failed = 0;
    let cases = with_counters(true, |case, counter| {
        let counted = counter.count(&case.sample(), &case.image_sizes());
        match (&counted, case.length) {
            (Ok(count), Some(length)) => {
                let grids: Vec<_> = count.grids.iter().map(|grid| (grid.h, grid.w)).collect();
                assert_eq!((count.length, Some(grids)), (length, case.grids.clone()), "{:?}", case.prompts);
                assert_eq!(count.length, count.text_tokens + count.image_tokens);
                assert_eq!(count.patches, count.image_tokens * case.merge_size * case.merge_size);
                let encoded = counter.encode(&case.sample(), &case.image_sizes(), None).unwrap();
                assert_eq!(
                    (encoded.input_ids.len(), encoded.is_trained.len()),
                    (length as usize, length as usize)
                );
            }
            (Err(_), None) => failed += 1,
            _ => panic!("{counted:?}, expected {:?} or {:?}: {:?}", case.length, case.error, case.prompts),
        }
    });
    assert_eq!((cases, failed), (807, 3));
}

#[test]
fn every_length_of_frames_is_the_trainers() {
    let mut failed = 0;
    let cases = with_counters(false, |case, counter| {
        let counted = counter.count_frames(&case.sample(), &case.image_sizes(), &case.frames(counter));
        match (&counted, case.length) {
            (Ok(count), Some(length)) => {
                assert_eq!(count.length, length, "{:?}", case.prompts);
                let frames = case.frames(counter);
                let encoded = counter.encode(&case.sample(), &case.image_sizes(), Some(&frames)).unwrap();
                assert_eq!(encoded.input_ids.len(), length as usize);
            }
            (Err(_), None) => failed += 1,
            _ => panic!("{counted:?}, expected {:?} or {:?}: {:?}", case.length, case.error, case.prompts),
        }
    });
    assert_eq!((cases, failed), (116, 2));
}

#[test]
fn a_repaired_sample_counts_as_the_trainers_repair() {
    let mut repaired = 0;
    with_counters(true, |case, counter| {
        let mut sample = case.sample();
        match repair_placeholders(&mut sample) {
            Ok(changed) => repaired += usize::from(changed),
            Err(_) => return assert!(case.length.is_none()),
        }
        assert_eq!(count_placeholders(&sample), sample.images.len());
        let count = counter.count(&sample, &case.image_sizes()).unwrap();
        assert_eq!(Some(count.length), case.length, "{:?}", sample.prompts);
    });
    assert_eq!(repaired, 8);
}

#[test]
fn rounds_are_dropped_until_the_sample_fits() {
    let mut shortened = 0;
    with_counters(true, |case, counter| {
        let Some(length) = case.length else { return };
        let (sample, sizes) = (case.sample(), case.image_sizes());
        let whole = counter.max_rounds_that_fit(&sample, &sizes, length).unwrap().unwrap();
        assert_eq!((whole.rounds, whole.images), (sample.prompts.len(), sizes.len()));
        assert_eq!(whole.count.length, length);
        let Some(fit) = counter.max_rounds_that_fit(&sample, &sizes, length - 1).unwrap() else { return };
        shortened += 1;
        let mut kept = sample.clone();
        keep_rounds(&mut kept, fit.rounds);
        assert_eq!((kept.prompts.len(), kept.images.len()), (fit.rounds, fit.images));
        assert_eq!(counter.count(&kept, &sizes[..fit.images]).unwrap(), fit.count);
        assert!(fit.count.length < length);
        let mut one_more = sample.clone();
        keep_rounds(&mut one_more, fit.rounds + 1);
        let one_more_length = counter.count(&one_more, &sizes[..one_more.images.len()]).unwrap().length;
        assert!(one_more_length >= length, "a round more would have fitted too");
    });
    assert!(shortened > 100, "{shortened}");
}

#[test]
fn the_explained_segments_add_up() {
    with_counters(true, |case, counter| {
        let Some(length) = case.length else { return };
        let lines = counter.explain(&case.sample(), &case.image_sizes()).unwrap();
        let segments = lines.iter().filter(|line| line.text_tokens.is_some());
        let total: u64 =
            segments.map(|line| line.text_tokens.unwrap_or(0) + line.image_tokens.unwrap_or(0)).sum();
        assert_eq!(total, u64::from(length), "{lines:#?}");
    });
}
