//! Cuts the inputs into slices for many workers, without reading them.

use serde::{Deserialize, Serialize};

use crate::error::SourceError;
use crate::input::{Input, Shape};
use crate::input_file::InputFile;

/// A stretch of one input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Position of the input in the run's list.
    pub source: usize,
    /// Where it starts, in bytes; a line starts there.
    pub offset: u64,
    /// Where it ends, in bytes, behind a line break; `None`: at the end of the input.
    pub end: Option<u64>,
}

impl Part {
    /// All of an input.
    pub fn whole(source: usize) -> Self {
        Self { source, offset: 0, end: None }
    }
}

/// A place between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cut {
    source: usize,
    offset: u64,
}

/// Cuts `inputs` into `count` slices of about equal bytes, in order: one after another they hold every
/// record once. A slice may be empty.
///
/// Plain files of lines are cut at line breaks; to find one, the file is opened and read from the wanted
/// place on to the next break. A compressed file or an array stays whole.
///
/// # Errors
/// An input that cannot be read.
pub fn slices(inputs: &[Input], count: usize) -> Result<Vec<Vec<Part>>, SourceError> {
    let total: u64 = inputs.iter().map(|input| input.size).sum();
    let mut cuts = vec![Cut { source: 0, offset: 0 }];
    for slice in 1..count {
        let wanted = (u128::from(total) * slice as u128 / count as u128) as u64;
        let cut = cut_near(inputs, wanted)?;
        cuts.push(cut.max(cuts[slice - 1]));
    }
    cuts.push(Cut { source: inputs.len(), offset: 0 });
    Ok(cuts.windows(2).map(|pair| parts_between(inputs, pair[0], pair[1])).collect())
}

fn parts_between(inputs: &[Input], from: Cut, to: Cut) -> Vec<Part> {
    let mut parts = Vec::new();
    for source in from.source..inputs.len().min(to.source + 1) {
        let offset = if source == from.source { from.offset } else { 0 };
        let end = (source == to.source).then_some(to.offset);
        // An empty input belongs to the slice that it lies in.
        if end.is_none_or(|end| offset < end) {
            parts.push(Part { source, offset, end });
        }
    }
    parts
}

/// The first place between records at or behind `wanted`, counted over all inputs; for an input that cannot
/// be cut, the nearer of its ends.
fn cut_near(inputs: &[Input], wanted: u64) -> Result<Cut, SourceError> {
    let mut start = 0;
    for (source, input) in inputs.iter().enumerate() {
        let offset = wanted - start;
        if offset == 0 {
            return Ok(Cut { source, offset });
        }
        if offset < input.size {
            return match is_cuttable(input)? {
                true => next_line(input, source, offset),
                false if offset < input.size / 2 => Ok(Cut { source, offset: 0 }),
                false => Ok(Cut { source: source + 1, offset: 0 }),
            };
        }
        start += input.size;
    }
    Ok(Cut { source: inputs.len(), offset: 0 })
}

fn is_cuttable(input: &Input) -> Result<bool, SourceError> {
    Ok(input.is_seekable()? && input.shape()? == Shape::Lines)
}

/// The start of the first line at or behind `offset`.
fn next_line(input: &Input, source: usize, offset: u64) -> Result<Cut, SourceError> {
    const STEP: u64 = 64 << 10;
    let file = InputFile::open(input)?;
    // The line break before a line may be the byte before the offset.
    let mut at = offset - 1;
    loop {
        let bytes = file.read_some(at, STEP)?;
        if let Some(found) = memchr::memchr(b'\n', &bytes) {
            let offset = at + found as u64 + 1;
            let ends = offset >= input.size;
            return Ok(if ends { Cut { source: source + 1, offset: 0 } } else { Cut { source, offset } });
        }
        if bytes.is_empty() {
            return Ok(Cut { source: source + 1, offset: 0 });
        }
        at += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expand;

    fn inputs(folder: &std::path::Path, files: &[&str]) -> Vec<Input> {
        let paths: Vec<String> = (0..files.len())
            .map(|number| folder.join(format!("{number}.jsonl")).to_str().unwrap().to_owned())
            .collect();
        for (path, text) in paths.iter().zip(files) {
            std::fs::write(path, text).unwrap();
        }
        expand(&paths, &packd_storage::Stores::new(Default::default()).unwrap()).unwrap()
    }

    #[test]
    fn slices_hold_every_line_once_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let lines: String =
            (0..100).map(|n| format!("{{\"n\": {n}, \"t\": \"{}\"}}\n", "x".repeat(n * 37 % 90))).collect();
        let array = "[{\"a\": 1},\n{\"a\": 2}]";
        let files = [lines.as_str(), "", array, "{\"last\": 1}", &lines[..900]];
        let inputs = inputs(folder.path(), &files);
        for count in [1, 2, 3, 7, 50, 400] {
            let slices = slices(&inputs, count).unwrap();
            assert_eq!(slices.len(), count);
            let mut texts = vec![String::new(); files.len()];
            let mut last = 0;
            for part in slices.iter().flatten() {
                assert!(part.source >= last);
                last = part.source;
                let text = files[part.source];
                let end = part.end.unwrap_or(text.len() as u64) as usize;
                let piece = &text[part.offset as usize..end];
                assert!(part.source != 2 || piece == array, "an array stays whole");
                assert!(piece.is_empty() || piece.ends_with('\n') || end == text.len());
                texts[part.source] += piece;
            }
            assert_eq!(texts, files, "{count} slices");
        }
        let sizes: Vec<usize> = slices(&inputs[..1], 4)
            .unwrap()
            .iter()
            .map(|slice| {
                slice.iter().map(|part| (part.end.unwrap_or(lines.len() as u64) - part.offset) as usize).sum()
            })
            .collect();
        assert!(sizes.iter().all(|size| size.abs_diff(lines.len() / 4) < 120), "{sizes:?}");
    }
}
