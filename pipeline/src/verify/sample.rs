//! One packed sample: members, images, texts, and its length counted again.

use std::collections::HashSet;
use std::fs::File;

use packd_contracts::{Frames, ImageRef, ImageSize, Reason, Sample, Verdict, read_positions};
use packd_sinks::IndexedSample;

use super::context::{Context, Digest};
use super::fault::FaultKind;
use super::images::check_image;
use super::rules::Counting;
use super::shard::Shard;
use crate::packed_set::{PackedJson, Problem, SubSample, read_member};

/// Checks one packed sample. `written` is its checksum as it was written, given when the shard changed.
pub(super) fn check(
    context: &Context<'_>,
    shard: &Shard<'_>,
    tar: &File,
    sample: &IndexedSample,
    written: Option<u64>,
) {
    let mut problems = Vec::new();
    let packed = read(context, tar, sample, &mut problems);
    let changed = written.is_some_and(|written| written != sample.checksum);
    if changed && problems.is_empty() {
        problems.push(Problem::new(FaultKind::SampleChanged, "its bytes are not those that were written"));
    } else if changed {
        for problem in &mut problems {
            problem.detail += " (its bytes are not those that were written)";
        }
    }
    let digest = packed.as_ref().filter(|_| problems.is_empty()).and_then(Digest::of);
    context.register(shard.number, &shard.file, &sample.key, sample.offset, digest);
    let mut totals = context.totals();
    totals.packs += 1;
    if let Some(packed) = &packed {
        totals.sub_samples += packed.sub_samples.len() as u64;
        totals.images += packed.images() as u64;
        totals.single += u64::from(packed.sub_samples.len() == 1);
    }
    drop(totals);
    for problem in problems {
        context.faults.add_for_key(problem.kind, &shard.file, &sample.key, problem.detail);
    }
}

fn read(
    context: &Context<'_>,
    tar: &File,
    sample: &IndexedSample,
    problems: &mut Vec<Problem>,
) -> Option<PackedJson> {
    let Some(json) = sample.parts.iter().find(|part| part.name == "json") else {
        problems.push(Problem::new(FaultKind::MemberMissing, "json is missing"));
        return None;
    };
    let bytes = match read_member(tar, json.offset, json.size) {
        Ok(bytes) => bytes,
        Err(error) => {
            problems.push(Problem::new(FaultKind::Json, format!("the json cannot be read: {error}")));
            return None;
        }
    };
    let packed = match PackedJson::parse(&bytes) {
        Ok((packed, found)) => {
            problems.extend(found);
            packed
        }
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    drop(bytes);
    check_members(sample, &packed, problems);
    let recount = context.rules.recounts(&sample.key);
    let counts: Vec<Option<(u64, u64)>> = packed
        .sub_samples
        .iter()
        .enumerate()
        .map(|(s, sub)| {
            let sizes = image_sizes(tar, sample, s, sub, problems);
            if !recount {
                return None;
            }
            let frames = sub.is_frames().then(|| frames(tar, sample, s, sub));
            count(context, s, sub, sizes.as_deref(), frames, problems)
        })
        .collect();
    let lengths: Vec<Option<u64>> = counts.iter().map(|count| count.map(|(length, _)| length)).collect();
    check_lengths(context, &packed, &lengths, recount, problems);
    let patches = counts.iter().flatten().map(|(_, patches)| patches).sum();
    check_limits(context, &packed, patches, problems);
    Some(packed)
}

/// The members must be exactly those that the json speaks of.
fn check_members(sample: &IndexedSample, packed: &PackedJson, problems: &mut Vec<Problem>) {
    let mut expected: HashSet<String> = HashSet::from(["json".to_owned()]);
    for (s, sub) in packed.sub_samples.iter().enumerate() {
        expected.extend((0..sub.images).map(|j| format!("img{s}_{j}.jpg")));
        let arrays = sub.positions.iter().enumerate().filter(|(_, present)| **present);
        expected.extend(arrays.map(|(j, _)| format!("img{s}_{j}.npy")));
    }
    let mut seen = HashSet::new();
    for part in &sample.parts {
        if !expected.contains(&part.name) {
            let detail = format!("{} is in the tar, and the json knows nothing of it", part.name);
            problems.push(Problem::new(FaultKind::MemberExtra, detail));
        } else if !seen.insert(part.name.as_str()) {
            problems.push(Problem::new(FaultKind::MemberExtra, format!("{} stands twice", part.name)));
        }
    }
    let mut missing: Vec<&String> = expected.iter().filter(|name| !seen.contains(name.as_str())).collect();
    missing.sort_unstable();
    for name in missing {
        problems.push(Problem::new(FaultKind::MemberMissing, format!("{name} is missing")));
    }
}

/// The sizes of a sub-sample's images, from their bytes; `None` if one cannot be used.
fn image_sizes(
    tar: &File,
    sample: &IndexedSample,
    s: usize,
    sub: &SubSample,
    problems: &mut Vec<Problem>,
) -> Option<Vec<ImageSize>> {
    let mut sizes = Vec::new();
    let mut whole = true;
    for j in 0..sub.images {
        let name = format!("img{s}_{j}.jpg");
        let Some(part) = sample.parts.iter().find(|part| part.name == name) else {
            whole = false;
            continue;
        };
        let stated = sub.media_types.as_ref().and_then(|types| types.get(j));
        let checked = read_member(tar, part.offset, part.size)
            .map_err(|error| error.to_string())
            .and_then(|bytes| check_image(bytes, stated.map(String::as_str)));
        match checked {
            Ok(size) => sizes.push(size),
            Err(detail) => {
                whole = false;
                problems.push(Problem::new(FaultKind::Image, format!("{name}: {detail}")));
            }
        }
    }
    whole.then_some(sizes)
}

/// What a sub-sample of video frames has beyond its images. An array that is not there is none to the trainer.
fn frames(tar: &File, sample: &IndexedSample, s: usize, sub: &SubSample) -> Result<Frames, Verdict> {
    let unreadable = |error: std::io::Error| Verdict::new(Reason::PatchPositionsMissing, error.to_string());
    let positions = (0..sub.images).map(|j| {
        let name = format!("img{s}_{j}.npy");
        let stated = sub.positions.get(j).copied().unwrap_or(false);
        let part = sample.parts.iter().find(|part| stated && part.name == name);
        let Some(part) = part else { return Ok(None) };
        let bytes = read_member(tar, part.offset, part.size).map_err(unreadable)?;
        let named = |verdict: Verdict| Verdict::new(verdict.reason, format!("{name}: {}", verdict.detail));
        read_positions(&bytes).map(Some).map_err(named)
    });
    let positions = positions.collect::<Result<_, Verdict>>()?;
    Ok(Frames { positions, fps: sub.fps, timestamp_decimal: sub.timestamp_decimal })
}

/// Tokens and patches of a sub-sample, counted from what the tar holds.
fn count(
    context: &Context<'_>,
    s: usize,
    sub: &SubSample,
    sizes: Option<&[ImageSize]>,
    frames: Option<Result<Frames, Verdict>>,
    problems: &mut Vec<Problem>,
) -> Option<(u64, u64)> {
    if sub.prompts.len() != sub.captions.len() {
        return None;
    }
    let sizes = sizes?;
    let sample = Sample {
        system: sub.system.clone(),
        prompts: sub.prompts.clone(),
        captions: sub.captions.clone(),
        images: vec![ImageRef::Inline(Vec::new()); sizes.len()],
        ..Sample::default()
    };
    let counter = &context.rules.counter;
    let counted = match frames {
        None => counter.count(&sample, sizes),
        Some(frames) => frames.and_then(|frames| counter.count_frames(&sample, sizes, &frames)),
    };
    match counted {
        Ok(count) => Some((count.length.into(), count.patches.into())),
        // Other contracts know no frames; the report says so once.
        Err(verdict) if verdict.reason == Reason::VideoUnsupported => None,
        Err(verdict) => {
            problems.push(Problem::new(FaultKind::Uncountable, format!("sub-sample {s}: {verdict}")));
            None
        }
    }
}

/// Holds the counted lengths against the stated ones, and their sum against seq_len.
fn check_lengths(
    context: &Context<'_>,
    packed: &PackedJson,
    counted_each: &[Option<u64>],
    recount: bool,
    problems: &mut Vec<Problem>,
) {
    let rules = &context.rules;
    let mut differing = false;
    for (s, (sub, counted)) in packed.sub_samples.iter().zip(counted_each).enumerate() {
        let (Some(stated), Some(counted)) = (sub.length, *counted) else { continue };
        if stated == counted {
            continue;
        }
        differing = true;
        if rules.counting == Counting::AsWritten {
            let detail =
                format!("sub-sample {s} is stated to have {stated} tokens; counted again it has {counted}");
            problems.push(Problem::new(FaultKind::Length, detail));
        }
    }
    let stated: Option<Vec<u64>> = packed.sub_samples.iter().map(|sub| sub.length).collect();
    let counted: Option<Vec<u64>> = counted_each.iter().copied().collect();
    let lengths = match rules.counting {
        Counting::Unknown => stated.or(counted.clone()),
        Counting::Other => counted.clone(),
        Counting::AsWritten => counted.clone().or(stated),
    };
    if let Some(lengths) = &lengths {
        let room = lengths.iter().fold(0_u64, |sum, length| sum.saturating_add(rules.room(*length)));
        if room > u64::from(rules.seq_len) {
            let padded = if rules.pad_to_multiple > 1 { ", padding of sub-samples included" } else { "" };
            let detail = format!("{room} tokens{padded}; seq_len is {}", rules.seq_len);
            problems.push(Problem::new(FaultKind::OverSeqLen, detail));
        }
    }
    let mut totals = context.totals();
    totals.differing += u64::from(differing && rules.counting != Counting::AsWritten);
    totals.recounted += u64::from(recount && counted.is_some());
    let uncounted = |(sub, length): (&SubSample, &Option<u64>)| sub.is_frames() && length.is_none();
    totals.frames += u64::from(recount && packed.sub_samples.iter().zip(counted_each).any(uncounted));
    if let Some(lengths) = lengths {
        totals.measured += 1;
        totals.tokens = lengths.iter().fold(totals.tokens, |sum, length| sum.saturating_add(*length));
    }
}

fn check_limits(context: &Context<'_>, packed: &PackedJson, patches: u64, problems: &mut Vec<Problem>) {
    let rules = &context.rules;
    let counts = [
        ("sub-samples", "max_samples", packed.sub_samples.len() as u64, rules.max_samples.map(u64::from)),
        ("images", "max_images", packed.images() as u64, rules.max_images.map(u64::from)),
        ("patches", "max_patches", patches, rules.max_patches),
    ];
    for (what, limit, found, most) in counts {
        if let Some(most) = most.filter(|most| found > *most) {
            let detail = format!("{found} {what}; `{limit}` is {most}");
            problems.push(Problem::new(FaultKind::OverLimit, detail));
        }
    }
}
