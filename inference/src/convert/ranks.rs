//! The files of a Megatron checkpoint's ranks, and whether they hold the model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use super::args::TrainedWith;
use super::error::ConvertError;
use super::model::{Entry, Model};
use super::names;
use super::pieces::cut;
use super::sharding::{PatchForm, Rank, Sharding};
use super::{Format, args};
use crate::error::Result;
use crate::layout::{AskedDegrees, Checkpoint, Layout};
use crate::progress::Progress;
use crate::torch_file::{TensorInfo, TorchDtype, TorchFile};
use crate::turns;

/// A tensor of a rank, by its number there.
pub(super) type TensorOfRank = (Rank, usize);

/// Elements that are compared at a time where they do not lie in order.
const COMPARED: usize = 1 << 20;

/// One file.
struct RankFile {
    file: TorchFile,
    tensors: Vec<TensorInfo>,
    /// Their names in the file.
    own_names: Vec<String>,
    /// And with every expert named by its number, whichever way the file names them.
    names: BTreeMap<String, usize>,
}

/// All of them.
pub(super) struct Ranks {
    files: HashMap<Rank, RankFile>,
    /// Where `args` say other things than the configuration, without being wrong.
    pub(super) notes: BTreeSet<String>,
    /// What the first file says that its training computed with.
    pub(super) trained_with: TrainedWith,
}

impl Ranks {
    /// Opens all files of the checkpoint in `dir`; the model's configuration is that in `hf`.
    pub(super) fn open(
        dir: &Path,
        asked: &AskedDegrees,
        model: &Model,
        hf: &Path,
    ) -> Result<(Self, Sharding)> {
        let layout = match Checkpoint::read(dir, asked)? {
            Checkpoint::Torch(layout) => layout,
            Checkpoint::Distributed(found) => {
                let detail = format!(
                    "this is a distributed checkpoint ({}); load it in Megatron and save it with --ckpt-format torch",
                    found.backend
                );
                return Err(ConvertError::Source { path: found.dir, detail }.into());
            }
        };
        let wrong = |detail: String| ConvertError::Source { path: layout.dir.clone(), detail };
        if !layout.missing.is_empty() {
            return Err(wrong(format!("missing ranks: {}", layout.missing.join(", "))).into());
        }
        if layout.virtual_chunks > 1 {
            let help = "load it in Megatron without a virtual pipeline and save it again";
            return Err(wrong(format!("its stages are chunks of a virtual pipeline; {help}")).into());
        }
        if !layout.extra.is_empty() {
            let detail = format!("folders of no rank, which would be left out: {}", layout.extra.join(", "));
            return Err(wrong(detail).into());
        }
        if let Some(problem) = layout.unsafe_to_join.first() {
            return Err(wrong(problem.clone()).into());
        }
        let found = layout.degrees;
        for (name, asked, found) in
            [("tensor", asked.tp, found.tp), ("pipeline", asked.pp, found.pp), ("expert", asked.ep, found.ep)]
        {
            if let Some(asked) = asked.filter(|asked| *asked != found) {
                let detail = format!("its {name} parallel degree is {found}, {asked} was given for it");
                return Err(wrong(detail).into());
            }
        }
        let stages = layout.layers_per_stage().unwrap_or_default();
        let degrees = layout.degrees;
        let (mut files, mut notes) = (HashMap::new(), BTreeSet::new());
        let all = Sharding {
            tp: degrees.tp,
            stages,
            ep: degrees.ep,
            etp: degrees.tp,
            patch: PatchForm { cut: false, four: false },
            padded_vocab: 0,
        };
        for rank in all.ranks() {
            let file = RankFile::open(&layout, rank)?;
            args::compare(&file.file, &model.config, hf, &mut notes)?;
            files.insert(rank, file);
        }
        let trained_with = files.get(&Rank::default()).map(|first: &RankFile| TrainedWith::of(&first.file));
        let ranks = Self { files, notes, trained_with: trained_with.unwrap_or_default() };
        let sharding = ranks.sharding(all, model)?;
        sharding.check(model).map_err(|error| wrong(format!("it cannot be of this model: {error}")))?;
        for rank in sharding.ranks() {
            ranks.check(rank, &sharding, model)?;
        }
        Ok((ranks, sharding))
    }

    /// What the shapes say about how the model was cut.
    fn sharding(&self, mut sharding: Sharding, model: &Model) -> Result<Sharding> {
        let shape = |rank: Rank, row: &str| -> Result<&[usize]> {
            let (tensor, _) = self.find(rank, row)?;
            Ok(&self.files[&rank].tensors[tensor].shape)
        };
        let first = Rank { tp: 0, pp: 0, ep: 0 };
        let patch = shape(first, names::VISION[0].mcore)?;
        sharding.patch.four = patch.len() == 4;
        // Rows of part of the ranks; with one rank it is all the same.
        sharding.patch.cut = patch.first() != Some(&model.config.vision.hidden_size);
        // The file alone says how far the vocabulary is filled up, so its rows must at least be rows.
        let (name, width) = (names::EMBEDDING[0].mcore, model.config.text.hidden_size);
        let found = shape(first, name)?;
        let rows = match *found {
            [rows, cols] if cols == width => rows,
            _ => {
                let expected = vec![model.config.text.vocab_size, width];
                let (name, path, found) = (name.to_owned(), self.path(first).to_owned(), found.to_vec());
                return Err(ConvertError::Shape { name, path, found, expected }.into());
            }
        };
        sharding.padded_vocab = rows.saturating_mul(sharding.tp);
        if let (Some(moe), Some(expert)) = (
            &model.config.text.moe,
            model.entries.iter().find(|entry| entry.form() == names::Form::Columns && entry.expert.is_some()),
        ) && let Some((pp, layer)) = sharding.stage(expert)
        {
            let found = shape(Rank { pp, ..first }, &expert.mcore_name(layer, 0))?;
            let cols = found.get(1).copied().unwrap_or(1).max(1);
            sharding.etp = (moe.moe_intermediate_size / cols).max(1);
        }
        Ok(sharding)
    }

    /// Whether a rank has what it should, and nothing else.
    fn check(&self, rank: Rank, sharding: &Sharding, model: &Model) -> Result<()> {
        let file = &self.files[&rank];
        let held: Vec<(&Entry, String)> = sharding.held(model, rank);
        for (entry, name) in &held {
            let (tensor, _) = self.find(rank, name)?;
            let (found, expected) = (&file.tensors[tensor].shape, cut(entry, model, sharding, rank).shape);
            if *found != expected {
                let (name, path) = (file.own_names[tensor].clone(), self.path(rank).to_owned());
                return Err(ConvertError::Shape { name, path, found: found.clone(), expected }.into());
            }
        }
        if held.len() < file.names.len() {
            let held: std::collections::HashSet<&str> = held.iter().map(|(_, name)| name.as_str()).collect();
            let left = file.names.iter().find(|(name, _)| !held.contains(name.as_str()));
            if let Some((_, &tensor)) = left {
                let (name, path) = (file.own_names[tensor].clone(), self.path(rank).to_owned());
                return Err(ConvertError::UnknownTensor { name, path }.into());
            }
        }
        Ok(())
    }

    /// The number of a rank's tensor, and its dtype.
    pub(super) fn find(&self, rank: Rank, name: &str) -> Result<(usize, TorchDtype)> {
        let file = &self.files[&rank];
        match file.names.get(name) {
            Some(&tensor) => Ok((tensor, file.tensors[tensor].dtype)),
            None => {
                let (name, path) = (name.to_owned(), self.path(rank).to_owned());
                Err(ConvertError::MissingTensor { name, path, format: Format::Mcore }.into())
            }
        }
    }

    pub(super) fn path(&self, rank: Rank) -> &Path {
        self.files[&rank].file.path()
    }

    /// Appends elements of a rank's tensor, counted in row-major order.
    pub(super) fn elements(&self, rank: Rank, tensor: usize, elements: Range<usize>, out: &mut Vec<u8>) {
        let file = &self.files[&rank];
        file.file.elements(&file.tensors[tensor], elements, out);
    }

    /// Refuses tensors that are not the same as others, bit for bit: pairs of a copy and what it is a copy of.
    pub(super) fn compare(&self, copies: &[[TensorOfRank; 2]], progress: &Progress) -> Result<()> {
        let bytes = |(rank, tensor): TensorOfRank| {
            let info = &self.files[&rank].tensors[tensor];
            info.elements() * info.dtype.size()
        };
        progress.start("comparing copies", Some(copies.iter().map(|[copy, _]| bytes(*copy) as u64).sum()));
        turns::each(copies.len(), progress, |number, turn| {
            let [copy, original] = copies[number];
            if !self.same(copy, original)? {
                let [one, other] = [original, copy].map(|(rank, _)| self.path(rank).to_owned());
                let name = self.files[&copy.0].own_names[copy.1].clone();
                return Err(ConvertError::Replicas { name, one, other }.into());
            }
            // An error stops what is compared after this, not this.
            let _ = turn.done(bytes(copy));
            Ok(())
        })
    }
}

impl Ranks {
    fn same(&self, one: TensorOfRank, other: TensorOfRank) -> Result<bool> {
        let (file, other_file) = (&self.files[&one.0], &self.files[&other.0]);
        let (info, other_info) = (&file.tensors[one.1], &other_file.tensors[other.1]);
        if info.dtype != other_info.dtype || info.shape != other_info.shape {
            return Ok(false);
        }
        if info.is_contiguous() && other_info.is_contiguous() {
            return Ok(file.file.tensor_bytes(info)? == other_file.file.tensor_bytes(other_info)?);
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for start in (0..info.elements()).step_by(COMPARED) {
            let elements = start..(start + COMPARED).min(info.elements());
            ours.clear();
            theirs.clear();
            file.file.elements(info, elements.clone(), &mut ours);
            other_file.file.elements(other_info, elements, &mut theirs);
            if ours != theirs {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl RankFile {
    fn open(layout: &Layout, rank: Rank) -> Result<Self> {
        let file = TorchFile::open(&layout.rank_path(rank.tp, rank.pp, rank.ep))?;
        let wrong = |detail| ConvertError::Source { path: file.path().to_owned(), detail };
        let (mut tensors, mut own_names, mut found) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (_, name, node) in file.model() {
            if name.ends_with("_extra_state") || names::is_computed(name) {
                continue;
            }
            let Some(info) = node.as_tensor() else {
                return Err(wrong(format!("{name} is no tensor but {}", node.describe())).into());
            };
            file.check_expanded(info)?;
            if names::is_legacy_grouped(name) {
                let help = "load it in Megatron and save it with --moe-grouped-gemm off, or with Transformer Engine's \
                            grouped GEMM (without --moe-use-legacy-grouped-gemm)";
                return Err(
                    wrong(format!("{name} has all experts of a layer for grouped GEMM; {help}")).into()
                );
            }
            let by_expert = names::ungrouped(name).unwrap_or(name.to_owned());
            if let Some(other) = found.insert(by_expert, tensors.len()) {
                let other: &String = &own_names[other];
                return Err(
                    wrong(format!("{name} and {other} are the same matrix of an expert; keep one")).into()
                );
            }
            tensors.push(info.clone());
            own_names.push(name.to_owned());
        }
        Ok(Self { file, tensors, own_names, names: found })
    }
}
