//! Writing a Megatron checkpoint.

use std::path::Path;

use super::args::TrainedWith;
use super::error::ConvertError;
use super::model::{Entry, Model};
use super::pieces::{Cut, cut};
use super::sharding::{Rank, Sharding};
use super::stream::{HfTensors, PieceReader};
use super::{McoreOptions, Report, Source, args, names};
use crate::error::{ModelError, Result};
use crate::layout::{RANK_FILE, Saved, TRACKER};
use crate::sync::Syncer;
use crate::torch_file::{ExtraState, PyValue, TensorSpec, TorchDtype, TorchFileWriter};

/// Writes `release/mp_rank_…` below `dir`, then the tracker file.
pub(super) fn write(
    dir: &Path,
    source: &Source,
    sharding: &Sharding,
    options: &McoreOptions,
) -> Result<Report> {
    let (model, trained_with, source) = (&source.model, source.trained_with(), source.tensors());
    let folder = Saved::Release.folder().unwrap_or_default();
    let (mut report, mut syncer) = (Report::default(), Syncer::default());
    for rank in sharding.ranks() {
        let dir = dir.join(&folder).join(sharding.style().name(rank.tp, rank.pp, rank.ep));
        std::fs::create_dir_all(&dir).map_err(|source| ModelError::Write { path: dir.clone(), source })?;
        let file = RankWriter { model, source, sharding, options, trained_with, rank };
        file.write(&dir.join(RANK_FILE), &mut report, &mut syncer)?;
    }
    syncer.wait()?;
    // Last: a checkpoint without it is not found.
    let tracker = dir.join(TRACKER);
    std::fs::write(&tracker, format!("{folder}\n"))
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

impl RankWriter<'_> {
    fn write(&self, path: &Path, report: &mut Report, syncer: &mut Syncer) -> Result<()> {
        let (mut pairs, mut cuts) = (Vec::new(), Vec::new());
        for (entry, name) in self.sharding.held(self.model, self.rank) {
            let dtype = dtype(entry, self.source)?;
            let Cut { shape, pieces } = cut(entry, self.model, self.sharding, self.rank);
            let spec = TensorSpec { dtype, shape };
            report.add(&spec);
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
            let mut reader = PieceReader::new(self.source, names, pieces, spec.dtype.size());
            let bytes = spec.bytes().unwrap_or(usize::MAX);
            writer.tensor_from(&mut reader, bytes)?;
            syncer.wrote(bytes as u64, writer.file())?;
        }
        syncer.run(move || Ok(writer.finish()?))?;
        report.files += 1;
        Ok(())
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
