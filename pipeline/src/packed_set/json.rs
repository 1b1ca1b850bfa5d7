//! The json of a packed sample as it is found, with or without packd's own keys.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::verify::FaultKind;

/// Something that a packed sample gets wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: FaultKind,
    pub(crate) detail: String,
}

impl Problem {
    pub(crate) fn new(kind: FaultKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

/// One sub-sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SubSample {
    pub(crate) images: usize,
    pub(crate) prompts: Vec<String>,
    pub(crate) captions: Vec<String>,
    pub(crate) system: Option<String>,
    /// Which of its images have an array of patch positions.
    pub(crate) positions: Vec<bool>,
    /// A frame rate above 0, which changes how it is counted.
    pub(crate) fps: Option<f64>,
    pub(crate) timestamp_decimal: Option<u32>,
    pub(crate) id: Option<String>,
    pub(crate) length: Option<u64>,
    pub(crate) source: Option<(String, u64)>,
    pub(crate) media_types: Option<Vec<String>>,
}

impl SubSample {
    /// Video frames, which are counted by arrays that lie beside the images.
    pub(crate) fn is_frames(&self) -> bool {
        self.fps.is_some() || self.positions.contains(&true)
    }
}

/// A packed json.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PackedJson {
    pub(crate) sub_samples: Vec<SubSample>,
    /// It has packd's `lengths`.
    pub(crate) has_lengths: bool,
    pub(crate) cu_lengths: Option<Vec<u64>>,
}

/// A turn list, or the single text that the trainer takes as a list of one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct Raw {
    // Of the names only their number is used, by the trainer as well.
    images: Vec<Vec<IgnoredAny>>,
    prompts: Vec<Texts>,
    captions: Vec<Texts>,
    sample_count: Option<u64>,
    patch_positions: Option<Vec<Vec<Option<String>>>>,
    timestamp_decimal: Option<Vec<Value>>,
    fps: Option<Vec<Value>>,
    ids: Option<Vec<Option<String>>>,
    lengths: Option<Vec<u64>>,
    cu_lengths: Option<Vec<u64>>,
    sources: Option<Vec<(String, u64)>>,
    media_types: Option<Vec<Vec<String>>>,
    systems: Option<Vec<Option<String>>>,
}

impl PackedJson {
    /// Reads a packed json; what is wrong in itself comes back beside it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, Vec<Problem>), Problem> {
        let raw: Raw = serde_json::from_slice(bytes)
            .map_err(|error| Problem::new(FaultKind::Json, format!("the json cannot be read: {error}")))?;
        let count = raw.prompts.len();
        let mut problems = raw.count_problems(count);
        if !problems.is_empty() {
            return Err(problems.swap_remove(0));
        }
        let has_lengths = raw.lengths.is_some();
        let cu_lengths = raw.cu_lengths.clone();
        let packed = Self { sub_samples: raw.sub_samples(), has_lengths, cu_lengths };
        packed.check_rounds(&mut problems);
        packed.check_cu_lengths(&mut problems);
        Ok((packed, problems))
    }

    /// The images of all sub-samples.
    pub(crate) fn images(&self) -> usize {
        self.sub_samples.iter().map(|sub| sub.images).sum()
    }

    fn check_rounds(&self, problems: &mut Vec<Problem>) {
        for (s, sub) in self.sub_samples.iter().enumerate() {
            let (prompts, captions) = (sub.prompts.len(), sub.captions.len());
            if prompts != captions || prompts == 0 {
                let detail = format!("sub-sample {s} has {prompts} prompts and {captions} captions");
                problems.push(Problem::new(FaultKind::Rounds, detail));
            }
        }
    }

    fn check_cu_lengths(&self, problems: &mut Vec<Problem>) {
        let Some(found) = &self.cu_lengths else { return };
        let lengths: Option<Vec<u64>> = self.sub_samples.iter().map(|sub| sub.length).collect();
        let Some(lengths) = lengths else {
            let detail = "it has `cu_lengths` and no `lengths`";
            return problems.push(Problem::new(FaultKind::CuLengths, detail));
        };
        let mut expected = vec![0_u64];
        for length in lengths {
            expected.push(expected.last().copied().unwrap_or(0).saturating_add(length));
        }
        if *found != expected {
            let detail =
                format!("cu_lengths is {}, the lengths add up to {}", short(found), short(&expected));
            problems.push(Problem::new(FaultKind::CuLengths, detail));
        }
    }
}

fn short(numbers: &[u64]) -> String {
    const SHOWN: usize = 8;
    let more = if numbers.len() > SHOWN { ", …" } else { "" };
    let texts: Vec<String> = numbers.iter().take(SHOWN).map(u64::to_string).collect();
    format!("[{}{more}]", texts.join(", "))
}

impl Raw {
    /// Every list has one entry a sub-sample.
    fn count_problems(&self, count: usize) -> Vec<Problem> {
        let lists = [
            ("captions", Some(self.captions.len())),
            ("images", Some(self.images.len())),
            ("sample_count", self.sample_count.map(|count| usize::try_from(count).unwrap_or(usize::MAX))),
            ("patch_positions", self.patch_positions.as_ref().map(Vec::len)),
            ("timestamp_decimal", self.timestamp_decimal.as_ref().map(Vec::len)),
            ("fps", self.fps.as_ref().map(Vec::len)),
            ("ids", self.ids.as_ref().map(Vec::len)),
            ("lengths", self.lengths.as_ref().map(Vec::len)),
            ("sources", self.sources.as_ref().map(Vec::len)),
            ("media_types", self.media_types.as_ref().map(Vec::len)),
            ("systems", self.systems.as_ref().map(Vec::len)),
        ];
        let mut problems = Vec::new();
        if count == 0 {
            problems.push(Problem::new(FaultKind::Json, "it holds no sub-samples"));
        }
        for (name, found) in lists {
            if let Some(found) = found
                && found != count
            {
                let detail = format!("`prompts` is of {count} sub-samples, `{name}` of {found}");
                problems.push(Problem::new(FaultKind::Json, detail));
            }
        }
        problems
    }

    fn sub_samples(self) -> Vec<SubSample> {
        let texts = |texts: Texts| match texts {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        };
        let mut subs: Vec<SubSample> = (self.prompts.into_iter().zip(self.captions).zip(self.images))
            .map(|((prompts, captions), images)| SubSample {
                images: images.len(),
                prompts: texts(prompts),
                captions: texts(captions),
                ..SubSample::default()
            })
            .collect();
        fill(&mut subs, self.patch_positions, |sub, names| {
            sub.positions =
                names.iter().map(|name| name.as_ref().is_some_and(|name| !name.is_empty())).collect();
        });
        fill(&mut subs, self.fps, |sub, fps| sub.fps = rate(&fps));
        fill(&mut subs, self.timestamp_decimal, |sub, decimals| {
            sub.timestamp_decimal = decimals.as_u64().and_then(|decimals| decimals.try_into().ok());
        });
        fill(&mut subs, self.ids, |sub, id| sub.id = id);
        fill(&mut subs, self.lengths, |sub, length| sub.length = Some(length));
        fill(&mut subs, self.sources, |sub, source| sub.source = Some(source));
        fill(&mut subs, self.media_types, |sub, types| sub.media_types = Some(types));
        fill(&mut subs, self.systems, |sub, system| sub.system = system);
        subs
    }
}

fn fill<T>(subs: &mut [SubSample], values: Option<Vec<T>>, set: impl Fn(&mut SubSample, T)) {
    for (sub, value) in subs.iter_mut().zip(values.into_iter().flatten()) {
        set(sub, value);
    }
}

/// A frame rate: a positive number, or a list that starts with one.
fn rate(fps: &Value) -> Option<f64> {
    let first = fps.as_array().and_then(|list| list.first()).unwrap_or(fps);
    first.as_f64().filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_turns_and_no_keys_of_packd() {
        let text = r#"{"images": [["a"], []], "prompts": ["q", ["p", "r"]], "captions": [["x"], ["y", "z"]], "fps": [[30], null]}"#;
        let (packed, problems) = PackedJson::parse(text.as_bytes()).unwrap();
        assert_eq!(problems, []);
        assert!(!packed.has_lengths && packed.images() == 1);
        assert_eq!(packed.sub_samples[0].prompts, ["q"]);
        assert!(packed.sub_samples[0].is_frames() && !packed.sub_samples[1].is_frames());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let problem = |text: &str| match PackedJson::parse(text.as_bytes()) {
            Err(problem) => problem,
            Ok((_, problems)) => problems[0].clone(),
        };
        assert_eq!(problem("{").kind, FaultKind::Json);
        assert!(problem(r#"{"images": [], "prompts": []}"#).detail.contains("missing field `captions`"));
        assert!(
            problem(r#"{"images": [], "prompts": [], "captions": []}"#).detail.contains("no sub-samples")
        );
        let one =
            |rest: &str| format!(r#"{{"images": [[]], "prompts": [["a"]], "captions": [["b"]]{rest}}}"#);
        assert!(problem(&one(r#", "lengths": [1, 2]"#)).detail.contains("`lengths` of 2"));
        assert_eq!(problem(&one(r#", "lengths": [3], "cu_lengths": [0, 4]"#)).kind, FaultKind::CuLengths);
        assert_eq!(
            problem(r#"{"images": [[]], "prompts": [["a", "b"]], "captions": ["c"]}"#).kind,
            FaultKind::Rounds
        );
    }
}
