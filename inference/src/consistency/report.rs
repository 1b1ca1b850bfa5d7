//! What the checks found.

use serde::Serialize;

use super::{CheckKind, Tolerance};
use crate::agreement::Point;
use crate::flavour::Flavour;

/// What all checks found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// No check failed.
    pub passed: bool,
    /// Which thresholds counted.
    pub tolerance: Tolerance,
    /// Whose constants the Megatron weights were run with.
    pub flavour: Flavour,
    /// Models were run, not only tensors compared.
    pub ran_models: bool,
    /// The checks in order, those left out among them.
    pub checks: Vec<Check>,
    /// What the training may have computed with other than `config.json` says ([`Source::notes`](crate::convert::Source::notes)).
    pub notes: Vec<String>,
}

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything is within its threshold.
    Passed,
    /// Something is not.
    Failed,
    /// It was not made.
    Skipped,
}

/// A check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Which.
    pub check: CheckKind,
    /// What came of it.
    pub outcome: Outcome,
    /// Tensors or points that were compared.
    pub compared: usize,
    /// Those of them that are the same to the bit.
    pub identical: usize,
    /// The first that is over its threshold.
    pub first_over: Option<String>,
    /// The one nearest to its threshold, or farthest over it.
    pub worst: Option<Point>,
    /// Of tensors those over their thresholds, of a model's outputs all, in order.
    pub points: Vec<Point>,
    /// Why it failed without a comparison, why it was not made, or what to know about it.
    pub detail: Option<String>,
}

impl Check {
    pub(super) fn new(check: CheckKind) -> Self {
        Self {
            check,
            outcome: Outcome::Passed,
            compared: 0,
            identical: 0,
            first_over: None,
            worst: None,
            points: Vec::new(),
            detail: None,
        }
    }

    /// One that was not made.
    pub(super) fn skipped(check: CheckKind, why: &str) -> Self {
        Self { outcome: Outcome::Skipped, detail: Some(why.to_owned()), ..Self::new(check) }
    }

    /// One that could not compare anything.
    pub(super) fn failed(check: CheckKind, why: String) -> Self {
        Self { outcome: Outcome::Failed, detail: Some(why), ..Self::new(check) }
    }

    /// Counts a comparison, and keeps it when it failed or `keep` says so.
    pub(super) fn add(&mut self, point: Point, keep: bool) {
        self.compared += 1;
        self.identical += usize::from(point.identical);
        if !point.passed {
            self.outcome = Outcome::Failed;
            self.first_over.get_or_insert_with(|| point.name.clone());
        }
        if self.worst.as_ref().is_none_or(|worst| worst.strain() < point.strain()) {
            self.worst = Some(point.clone());
        }
        if keep || !point.passed {
            self.points.push(point);
        }
    }
}
