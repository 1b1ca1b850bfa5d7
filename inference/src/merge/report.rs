//! What a merge would do, and what stands in its way.

use std::fmt;

use serde::Serialize;

use super::source::Role;

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// A source has a tensor that the model has not.
    MissingInModel,
    /// A source's tensor has another shape than the model's.
    ShapeMismatch,
    /// No source has a tensor of the model.
    Uncovered,
    /// Some of q, k and v are there, others are not.
    Incomplete,
    /// A tensor of integers, or something that is no tensor.
    Dtype,
    /// Two tensors of the sources are for the same one of the model.
    Duplicate,
    /// The configuration cannot be right.
    Config,
}

/// Something that keeps sources from being merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// The source, for all but uncovered tensors.
    pub source: Option<Role>,
    /// The name of the tensor: as in the source where it has one, else as in the model.
    pub key: String,
    /// A sentence with the key in it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What became of the tensors of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// The source.
    pub source: Role,
    /// Tensors of the model that it fills.
    pub loaded: usize,
    /// Its tensors that the model has no use for (rotary tables, pooling).
    pub dropped: usize,
    /// Its tensors that the model does not have.
    pub missing_in_model: usize,
    /// Its tensors that have other shapes in the model.
    pub shape_mismatch: usize,
}

/// What a merge would do.
#[derive(Debug, Clone, Serialize)]
pub struct MergeReport {
    /// `dense` or `moe`.
    pub variant: &'static str,
    /// Tensors of the merged checkpoint.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Tensors of sources that the model does not have.
    pub missing_in_model: usize,
    /// Tensors of sources with other shapes than the model's.
    pub shape_mismatch: usize,
    /// Tensors of the model that no source has, those of an adapter that was not given among them.
    pub uncovered_model_params: usize,
    /// Of those, the ones of an adapter that was not given, which get first values.
    pub initialised: Vec<String>,
    /// The sources.
    pub sources: Vec<SourceReport>,
    /// Everything that is wrong; nothing is written unless this is empty.
    pub problems: Vec<Problem>,
    /// What is not wrong but good to know.
    pub notes: Vec<String>,
}

impl MergeReport {
    pub(super) fn count(problems: &[Problem], kind: ProblemKind, source: Option<Role>) -> usize {
        problems.iter().filter(|it| it.kind == kind && (source.is_none() || it.source == source)).count()
    }
}
