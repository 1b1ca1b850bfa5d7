//! Writing a Megatron checkpoint.

use std::path::Path;

use super::args::TrainedWith;
use super::error::ConvertError;
use super::model::{Entry, Model};
use super::pieces::{Cut, Piece, cut};
use super::sharding::{Rank, Sharding};
use super::stream::{HfTensors, PieceReader};
use super::{McoreOptions, Report, Source, args, names};
use crate::durable;
use crate::error::{ModelError, Result};
use crate::layout::{RANK_FILE, Saved, TRACKER};
use crate::progress::Progress;
use crate::torch_file::{ExtraState, PyValue, TensorSpec, TorchDtype, TorchFileWriter};
use crate::turns::{self, Counted, Turn};

/// Writes `release/mp_rank_…` below `dir`, several ranks at a time, then the tracker file.
pub(super) fn write(
    dir: &Path,
    source: &Source,
    sharding: &Sharding,
    options: &McoreOptions,
    progress: &Progress,
) -> Result<Report> {
    let (model, trained_with, source) = (&source.model, source.trained_with(), source.tensors());
    let folder = Saved::Release.folder().unwrap_or_default();
    let file = |rank| RankWriter { model, source, sharding, options, trained_with, rank };
    let ranks = sharding.ranks();
    let mut report = Report { files: ranks.len(), ..Report::default() };
    // Cut once more when they are written: the lists of all ranks at a time can be gigabytes.
    for rank in &ranks {
        file(*rank).tensors()?.iter().for_each(|held| report.add(&held.spec));
    }
    progress.start("writing", Some(report.bytes));
    turns::each(ranks.len(), progress, |number, turn| {
        let rank = ranks[number];
        let dir = dir.join(&folder).join(sharding.style().name(rank.tp, rank.pp, rank.ep));
        std::fs::create_dir_all(&dir).map_err(|source| ModelError::Write { path: dir.clone(), source })?;
        file(rank).write(&dir.join(RANK_FILE), turn)
    })?;
    // Last: a checkpoint without it is not found.
    let tracker = dir.join(TRACKER);
    durable::put(&tracker, format!("{folder}\n"))
        .map_err(|source| ModelError::Write { path: tracker, source })?;
    Ok(report)
}

struct RankWriter<'a> {
    model: &'a Model,
    source: &'a dyn HfTensors,
    sharding: &'a Sharding,
    options: &'a McoreOptions,
    trained_with: TrainedWith,
    rank: Rank,
}

/// A tensor of a rank.
struct Held<'a> {
    entry: &'a Entry,
    /// Its name in the file.
    name: String,
    pieces: Vec<Piece>,
    spec: TensorSpec,
}

impl<'a> RankWriter<'a> {
    fn tensors(&self) -> Result<Vec<Held<'a>>> {
        let held = self.sharding.held(self.model, self.rank);
        let of_rank = |(entry, name)| {
            let dtype = dtype(entry, self.source)?;
            let Cut { shape, pieces } = cut(entry, self.model, self.sharding, self.rank);
            Ok(Held { entry, name, pieces, spec: TensorSpec { dtype, shape } })
        };
        held.into_iter().map(of_rank).collect()
    }

    fn write(&self, path: &Path, turn: &Turn<'_>) -> Result<()> {
        let (mut pairs, mut cuts) = (Vec::new(), Vec::new());
        for Held { entry, name, pieces, spec } in self.tensors()? {
            cuts.push((entry, pieces, spec.clone()));
            let state = names::extra_state(&name);
            pairs.push((name, PyValue::Tensor(spec)));
            if let Some(state) = state {
                let value = match state.starts_with(names::PRE_NORM) {
                    true => ExtraState::of_norm(),
                    false => self.options.extra_state.value()?,
                };
                pairs.push((state, value));
            }
        }
        let root = PyValue::dict([
            ("model", PyValue::dict(pairs)),
            ("checkpoint_version", PyValue::Float(3.0)),
            ("args", args::of_model(&self.model.config, self.sharding, self.options, self.trained_with)),
            ("iteration", PyValue::Int(0)),
        ]);
        let mut writer = TorchFileWriter::create(path, &root)?;
        for (entry, pieces, spec) in cuts {
            let names = entry.parts.iter().map(|(name, _)| name.as_str()).collect();
            let reader = PieceReader::new(self.source, names, pieces, spec.dtype.size());
            writer.tensor_from(&mut Counted { reader, turn }, spec.bytes().unwrap_or(usize::MAX))?;
        }
        Ok(writer.finish()?)
    }
}

/// Refuses a model some of whose Megatron tensors would consist of tensors of different dtypes, before anything is written.
pub(super) fn check_dtypes(model: &Model, source: &dyn HfTensors) -> Result<()> {
    model.entries.iter().try_for_each(|entry| dtype(entry, source).map(drop))
}

/// The dtype of an entry: that of its parts, which must have the same.
fn dtype(entry: &Entry, source: &dyn HfTensors) -> Result<TorchDtype> {
    let of = |name: &String| {
        source.dtype(name).ok_or_else(|| ModelError::MissingTensor {
            name: name.clone(),
            help: "the source was checked to have it; please report this",
        })
    };
    let first = &entry.parts[0].0;
    let expected = of(first)?;
    for (name, _) in &entry.parts[1..] {
        let found = of(name)?;
        if found != expected {
            let (name, other) = (name.clone(), first.clone());
            return Err(ConvertError::Dtypes { name, found, other, expected }.into());
        }
    }
    Ok(expected)
}
