//! What came of comparing.

use serde::Serialize;

use crate::agreement::{Point, Seen, Threshold};
use crate::merge::Comparison;

/// What came of comparing a checkpoint with its sources. Parts that were left out are `None`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Validation {
    /// All parts pass.
    pub passed: bool,
    /// The configuration and the tensors, bit for bit.
    pub weights: Option<Comparison>,
    /// The vision tower and the merger.
    pub vit: Option<OutputPart>,
    /// The decoder on text.
    pub llm: Option<OutputPart>,
    /// An answer to a question about an image.
    pub e2e: Option<Generation>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// Outputs of two models at the points of one part, in the order in which they are computed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutputPart {
    /// All points are within the threshold.
    pub passed: bool,
    /// How far each point must agree.
    pub threshold: Threshold,
    /// The lowest cosine of any point; no number (JSON: null) where an output is no number.
    pub worst_cosine: Option<f64>,
    /// The largest relative error.
    pub worst_relative_error: Option<f64>,
    /// The first point over the threshold: what goes wrong goes wrong between it and the one before.
    pub first_over: Option<String>,
    /// Why nothing could be compared.
    pub problem: Option<String>,
    /// The points, as they are computed. Shapes are those of the sources' model, where it has the point.
    pub points: Vec<Point>,
}

/// The answers of two models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Generation {
    /// They are the same, or need not be: with unrounded sources they may part where two tokens are about as likely.
    pub passed: bool,
    /// Tokens of the checkpoint's model.
    pub checkpoint: Vec<u32>,
    /// Tokens of the sources' model.
    pub sources: Vec<u32>,
    /// The first token, counted from 0, that is not the same.
    pub parts_at: Option<usize>,
    /// Why nothing could be compared.
    pub problem: Option<String>,
}

impl Comparison {
    /// Whether nothing differs.
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

impl OutputPart {
    pub(super) fn compare(threshold: Threshold, checkpoint: &[Seen], sources: &[Seen]) -> Self {
        let of_name = |all: &[Seen], name: &str| all.iter().position(|seen| seen.name == name);
        let only = |seen: &Seen, who: &str| {
            Point::not_compared(&seen.name, &seen.shape, threshold, format!("only {who} has this point"))
        };
        let mut points: Vec<Point> = sources
            .iter()
            .map(|ours| match of_name(checkpoint, &ours.name) {
                Some(at) => Point::of_outputs(ours, &checkpoint[at], threshold),
                None => only(ours, "the sources' model"),
            })
            .collect();
        let more = checkpoint.iter().filter(|theirs| of_name(sources, &theirs.name).is_none());
        points.extend(more.map(|theirs| only(theirs, "the checkpoint")));
        let found = || points.iter().filter_map(|point| point.agreement);
        // What is no number is worse than any number.
        let worst = |values: &mut dyn Iterator<Item = f64>, is_worse: fn(f64, f64) -> bool| {
            values.reduce(|worst, one| if one.is_nan() || is_worse(one, worst) { one } else { worst })
        };
        Self {
            passed: points.iter().all(|point| point.passed),
            threshold,
            worst_cosine: worst(&mut found().map(|it| it.cosine), |one, other| one < other),
            worst_relative_error: worst(&mut found().map(|it| it.relative_error), |one, other| one > other),
            first_over: points.iter().find(|point| !point.passed).map(|point| point.name.clone()),
            problem: None,
            points,
        }
    }

    pub(super) fn failed(threshold: Threshold, problem: &str) -> Self {
        Self { passed: false, problem: Some(problem.to_owned()), ..Self::compare(threshold, &[], &[]) }
    }
}

impl Generation {
    pub(super) fn compare(checkpoint: Vec<u32>, sources: Vec<u32>, may_part: bool) -> Self {
        let both = checkpoint.iter().zip(&sources);
        let same = both.take_while(|(theirs, ours)| theirs == ours).count();
        let parts_at = (checkpoint != sources).then_some(same);
        Self { passed: may_part || parts_at.is_none(), checkpoint, sources, parts_at, problem: None }
    }

    pub(super) fn failed(problem: &str) -> Self {
        let (checkpoint, sources) = (Vec::new(), Vec::new());
        Self { passed: false, checkpoint, sources, parts_at: None, problem: Some(problem.to_owned()) }
    }
}
