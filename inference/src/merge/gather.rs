//! Which tensors of the sources make which tensor of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::remap::{FusedExperts, Renamed, fused_experts, rename};
use super::report::{Problem, ProblemKind};
use super::source::{Role, Source};
use super::target::{EMBEDDING, HEAD};
use crate::config::{ModelConfig, MoeConfig};

const THIRDS: [&str; 3] = ["q_proj", "k_proj", "v_proj"];

/// The name and shape of a tensor of a source, for each of q, k and v.
type Thirds<'s> = [Option<(&'s str, &'s [usize])>; 3];

/// A tensor of a source, or some of its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) role: Role,
    pub(super) key: String,
    pub(super) elements: Option<Range<usize>>,
}

/// What has been found so far.
pub(super) struct Gather<'a> {
    config: &'a ModelConfig,
    targets: BTreeMap<&'a str, &'a [usize]>,
    /// The pieces that make a tensor of the model, one behind the other.
    pub(super) made: BTreeMap<String, Vec<Piece>>,
    /// Tensors of the model that a problem of a source has spoken for.
    excused: BTreeSet<String>,
    pub(super) problems: Vec<Problem>,
    /// Tensors that the model has no use for.
    pub(super) dropped: BTreeMap<Role, usize>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(config: &'a ModelConfig, targets: &'a [(String, Vec<usize>)]) -> Self {
        let targets = targets.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
        let (made, excused) = (BTreeMap::new(), BTreeSet::new());
        Self { config, targets, made, excused, problems: Vec::new(), dropped: BTreeMap::new() }
    }

    /// Finds the place of every tensor of a source.
    pub(super) fn add(&mut self, source: &Source) {
        let role = source.role;
        let mut thirds: BTreeMap<String, Thirds<'_>> = BTreeMap::new();
        for (key, tensor) in &source.tensors {
            let renamed = rename(role, key);
            let name = match &renamed {
                Renamed::Dropped => {
                    *self.dropped.entry(role).or_default() += 1;
                    continue;
                }
                Renamed::Whole(name) | Renamed::Third(name, _) => name,
            };
            if let Err(found) = &tensor.dtype {
                match self.experts_of(name) {
                    Some((layer, moe, kind)) => self.excused.extend(expert_names(&layer, moe, kind)),
                    None => drop(self.excused.insert(name.clone())),
                }
                let detail =
                    format!("[{role}] {key} is {found}; weights are float64, float32, float16 or bfloat16");
                self.problem(ProblemKind::Dtype, role, key, detail);
            } else if let Renamed::Third(name, third) = renamed {
                match &mut thirds.entry(name.clone()).or_default()[third] {
                    Some((other, _)) => {
                        let detail = format!("[{role}] {key} and {other} are both for {name}");
                        self.problem(ProblemKind::Duplicate, role, key, detail);
                    }
                    empty => *empty = Some((key, &tensor.shape)),
                }
            } else if let Some((layer, moe, kind)) = self.experts_of(name) {
                self.split_experts(role, key, &tensor.shape, &layer, moe, kind);
            } else {
                let piece = Piece { role, key: key.clone(), elements: None };
                self.place(name, &tensor.shape, vec![piece]);
            }
        }
        for (name, thirds) in thirds {
            self.fuse(role, &name, &thirds);
        }
    }

    /// The layer of fused experts, where the model has experts.
    fn experts_of(&self, name: &str) -> Option<(String, &'a MoeConfig, FusedExperts)> {
        let (layer, kind) = fused_experts(name)?;
        let moe = self.config.text.moe.as_ref()?;
        self.targets
            .contains_key(format!("{layer}.gate.weight").as_str())
            .then(|| (layer.to_owned(), moe, kind))
    }

    fn problem(&mut self, kind: ProblemKind, role: Role, key: &str, message: String) {
        self.problems.push(Problem { kind, source: Some(role), key: key.to_owned(), message });
    }

    fn shape_problem(&mut self, role: Role, key: &str, name: &str, model: &[usize], weights: &[usize]) {
        self.excused.insert(name.to_owned());
        let also = if name == key { String::new() } else { format!(" ({key} in the source)") };
        let (model, weights) = (in_python(model), in_python(weights));
        let message = format!("[{role}] shape mismatch for {name}{also}: model={model} weights={weights}");
        self.problem(ProblemKind::ShapeMismatch, role, key, message);
    }

    /// Pieces of one source as a tensor of the model.
    fn place(&mut self, name: &str, shape: &[usize], pieces: Vec<Piece>) {
        let Some(Piece { role, key, .. }) = pieces.first().cloned() else { return };
        let Some(&expected) = self.targets.get(name) else {
            let also = if name == key { String::new() } else { format!(" ({key} in the source)") };
            let message = format!("[{role}] unknown key not in model: {name}{also}{}", why_unknown(&key));
            return self.problem(ProblemKind::MissingInModel, role, &key, message);
        };
        if shape != expected {
            return self.shape_problem(role, &key, name, expected, shape);
        }
        if let Some(before) = self.made.get(name).and_then(|pieces| pieces.first()) {
            let message =
                format!("[{role}] {key} and {} of [{}] are both for {name}", before.key, before.role);
            return self.problem(ProblemKind::Duplicate, role, &key, message);
        }
        self.made.insert(name.to_owned(), pieces);
    }

    /// Queries, keys and values as one tensor, behind each other.
    fn fuse(&mut self, role: Role, name: &str, thirds: &Thirds<'_>) {
        let there: Vec<_> = thirds.iter().flatten().copied().collect();
        if let [Some(q), Some(k), Some(v)] = *thirds {
            let all = [q, k, v];
            // Each is as high as a third of the model's; where the model has none, that is said of the first.
            if let Some(&expected) = self.targets.get(name) {
                let mut third = expected.to_vec();
                third[0] /= 3;
                if let Some((key, shape)) = all.into_iter().find(|(_, shape)| *shape != third) {
                    return self.shape_problem(role, key, name, &third, shape);
                }
            }
            let mut shape = q.1.to_vec();
            if let Some(rows) = shape.first_mut() {
                *rows = rows.saturating_mul(3);
            }
            let piece = |(key, _): (&str, _)| Piece { role, key: key.to_owned(), elements: None };
            return self.place(name, &shape, all.map(piece).into());
        }
        // A third that is there but of integers has been spoken of.
        if !self.excused.insert(name.to_owned()) {
            return;
        }
        let Some((key, _)) = there.first() else { return };
        let (layer, kind) = key.rsplit_once('.').unwrap_or((key, ""));
        let layer = layer.rsplit_once('.').map_or("", |(layer, _)| layer);
        let missing: Vec<String> = thirds
            .iter()
            .zip(THIRDS)
            .filter(|(third, _)| third.is_none())
            .map(|(_, third)| format!("{layer}.{third}.{kind}"))
            .collect();
        let message = format!(
            "[{role}] {} is missing: {} can only be made of all of q, k and v",
            missing.join(" and "),
            name
        );
        self.problem(ProblemKind::Incomplete, role, &missing[0], message);
    }

    /// Experts of a layer in one tensor as one tensor each (and of gate and up).
    fn split_experts(
        &mut self,
        role: Role,
        key: &str,
        shape: &[usize],
        layer: &str,
        moe: &MoeConfig,
        kind: FusedExperts,
    ) {
        let (experts, wide, width) =
            (moe.num_experts, moe.moe_intermediate_size, self.config.text.hidden_size);
        let (expected, each) = match kind {
            FusedExperts::GateUp => ([experts, 2 * wide, width], [wide, width]),
            FusedExperts::Down => ([experts, width, wide], [width, wide]),
        };
        let names = expert_names(layer, moe, kind);
        if shape != expected {
            self.excused.extend(names);
            return self.shape_problem(role, key, key, &expected, shape);
        }
        let size = wide * width;
        for (number, name) in names.iter().enumerate() {
            let elements = Some(number * size..(number + 1) * size);
            self.place(name, &each, vec![Piece { role, key: key.to_owned(), elements }]);
        }
    }

    /// The head of a tied decoder is its embedding. Whether it was one.
    pub(super) fn tie_head(&mut self) -> bool {
        let Some(embedding) = self.made.get(EMBEDDING).cloned() else { return false };
        if self.made.contains_key(HEAD) || self.excused.contains(HEAD) {
            return false;
        }
        self.made.insert(HEAD.to_owned(), embedding);
        true
    }

    /// The tensors of the model that no source has, without those that a problem speaks of already.
    pub(super) fn uncovered(&self) -> Vec<String> {
        let open = self
            .targets
            .keys()
            .filter(|name| !self.made.contains_key(**name) && !self.excused.contains(**name));
        open.map(|name| (*name).to_owned()).collect()
    }
}

/// The tensors of the model that a layer's fused experts are, in their order.
fn expert_names(layer: &str, moe: &MoeConfig, kind: FusedExperts) -> Vec<String> {
    let parts: &[&str] = match kind {
        FusedExperts::GateUp => &["gate_proj", "up_proj"],
        FusedExperts::Down => &["down_proj"],
    };
    let experts = (0..moe.num_experts).flat_map(|expert| parts.iter().map(move |part| (expert, part)));
    experts.map(|(expert, part)| format!("{layer}.experts.{expert}.{part}.weight")).collect()
}

fn why_unknown(key: &str) -> &'static str {
    if key.contains("class_embedding") {
        "; this model has no class embedding: was the tower trained with another architecture?"
    } else if key.ends_with("patch_embedding.bias") {
        "; patches are embedded without a bias in this model"
    } else {
        ""
    }
}

/// A shape as torch prints it.
fn in_python(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("({}{})", sizes.join(", "), if sizes.len() == 1 { "," } else { "" })
}
