//! Reading a checkpoint tree, and saying what is wrong with it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use super::decide::{Decision, two_parts};
use super::rank::{Args, EMBEDDING, RankFile};
use super::tree::{self, NameStyle, Place, RANK_FILE, Saved};
use super::{AskedDegrees, Checkpoint, Degrees, Layout, Stage, Vocabulary, distributed, etp};
use crate::error::{ModelError, Result};
use crate::torch_file::{TorchDtype, TorchFile};

/// Ranks that are listed as missing at most: a name such as `mp_rank_99_999` alone has a hundred thousand neighbours.
const LISTED: usize = 1000;

type Ranks = BTreeMap<Vec<usize>, RankFile>;

pub(super) fn read(dir: &Path, asked: &AskedDegrees) -> Result<Checkpoint> {
    let place = tree::locate(dir)?;
    let names = tree::list(&place.dir)?;
    if distributed::is_one(&names) {
        let mut found = distributed::read(&place.dir, place.saved)?;
        found.problems.extend(place.problem);
        return Ok(Checkpoint::Distributed(found));
    }
    let mut problems: Vec<String> = place.problem.iter().cloned().collect();
    let (mut ranks, mut extra) = (Ranks::new(), Vec::new());
    for name in names.into_iter().filter(|name| name.starts_with("mp_rank_")) {
        let file = place.dir.join(&name).join(RANK_FILE);
        match tree::rank_parts(&name) {
            // A folder without its file is a missing rank.
            Some(parts) if file.is_file() => drop(ranks.insert(parts, RankFile::read(&file)?)),
            Some(_) => problems.push(format!("{name} has no {RANK_FILE}")),
            None => extra.push(name),
        }
    }
    let counts = ranks.keys().map(Vec::len);
    let Some(parts) = most_common(counts) else {
        let detail = format!("it holds no mp_rank_…/{RANK_FILE}");
        return Err(ModelError::Checkpoint { path: place.dir, detail });
    };
    let (ranks, others): (Ranks, Ranks) = ranks.into_iter().partition(|(name, _)| name.len() == parts);
    extra.extend(others.keys().map(|parts| name_of(parts)));
    let decision = decide(parts, asked, &ranks);
    let reading = Reading { place, ranks, asked, problems, unsafe_to_join: Vec::new(), extra };
    Ok(Checkpoint::Torch(Box::new(reading.layout(decision)?)))
}

fn name_of(parts: &[usize]) -> String {
    match *parts {
        [tp, second] => NameStyle::TpPp.name(tp, second, 0),
        [tp, pp, ep] => NameStyle::TpPpEp.name(tp, pp, ep),
        _ => NameStyle::Tp.name(parts.first().copied().unwrap_or(0), 0, 0),
    }
}

fn most_common(counts: impl Iterator<Item = usize>) -> Option<usize> {
    let mut seen = BTreeMap::new();
    counts.for_each(|count| *seen.entry(count).or_insert(0) += 1);
    seen.into_iter().max_by_key(|(_, times)| *times).map(|(count, _)| count)
}

fn decide(parts: usize, asked: &AskedDegrees, ranks: &Ranks) -> Decision {
    let plain = |style, reason: &str| Decision { style, reason: reason.into(), problems: Vec::new() };
    match parts {
        1 => plain(NameStyle::Tp, "the names have one number: one stage, experts in one part"),
        2 => two_parts(asked, ranks),
        _ => plain(NameStyle::TpPpEp, "the names have three numbers"),
    }
}

/// What has been found so far.
struct Reading<'a> {
    place: Place,
    ranks: Ranks,
    asked: &'a AskedDegrees,
    problems: Vec<String>,
    unsafe_to_join: Vec<String>,
    extra: Vec<String>,
}

impl Reading<'_> {
    fn layout(mut self, decision: Decision) -> Result<Layout> {
        let style = decision.style;
        self.problems.extend(decision.problems);
        let args = self.ranks.values().next().map(|rank| rank.args.clone()).unwrap_or_default();
        let mut degrees = self.degrees(style, &args);
        self.check_files(style);
        let missing = self.missing(style, degrees);
        let stages: Vec<Option<Stage>> = (0..degrees.pp).map(|pp| self.stage(style, pp)).collect();
        self.check_stages(&stages, &args);
        degrees.etp = self.expert_tensor_parallel(style, degrees, &args)?;
        let vocabulary = self.vocabulary(style, degrees.tp, args.vocab_size)?;
        let mut dtypes: BTreeMap<TorchDtype, usize> = BTreeMap::new();
        for (dtype, _) in self.ranks.values().flat_map(|rank| rank.tensors.values()) {
            *dtypes.entry(*dtype).or_default() += 1;
        }
        let Self { place, ranks, mut problems, unsafe_to_join, extra, .. } = self;
        if !missing.is_empty() {
            problems.push(format!("missing ranks: {}", missing.join(", ")));
        }
        if !extra.is_empty() {
            problems.push(format!("folders of no rank: {}", extra.join(", ")));
        }
        Ok(Layout {
            root: place.root,
            dir: place.dir,
            saved: place.saved,
            style,
            reason: decision.reason,
            degrees,
            stages,
            virtual_chunks: ranks.values().map(|rank| rank.chunks).max().unwrap_or(1).max(1),
            vocabulary,
            dtypes,
            missing,
            extra,
            unsafe_to_join,
            problems,
        })
    }

    fn at(&self, style: NameStyle, tp: usize, pp: usize, ep: usize) -> Option<&RankFile> {
        self.ranks.iter().find(|(name, _)| style.ranks(name) == Some((tp, pp, ep))).map(|(_, rank)| rank)
    }

    /// The caller's degrees, else those of `args`, else of the names; they must all agree.
    fn degrees(&mut self, style: NameStyle, args: &Args) -> Degrees {
        let ranks = self.ranks.keys().filter_map(|name| style.ranks(name));
        let (tp, pp, ep) = ranks.fold((1, 1, 1), |(tp, pp, ep), rank| {
            (tp.max(rank.0 + 1), pp.max(rank.1 + 1), ep.max(rank.2 + 1))
        });
        let asked = *self.asked;
        let has_pp = matches!(style, NameStyle::TpPp | NameStyle::TpPpEp);
        let has_ep = matches!(style, NameStyle::TpEp | NameStyle::TpPpEp);
        let mut degree =
            |flag: &str, named: usize, in_name: bool, asked: Option<usize>, args: Option<usize>| {
                if let Some(asked) = asked.filter(|asked| *asked != named) {
                    self.problems.push(format!("{flag} {asked} was given, the names say {named}"));
                }
                if let Some(args) = args.filter(|args| *args != named) {
                    self.problems.push(format!("args say {flag} {args}, the names say {named}"));
                }
                // Where the names have no number, no other rank can be there or missing. A degree is bounded by what a
                // name of Megatron can count, so that a wrong one does not fill the memory.
                asked.or(args).filter(|degree| in_name && (1..=LISTED).contains(degree)).unwrap_or(named)
            };
        Degrees {
            tp: degree("--tp", tp, true, asked.tp, args.tp),
            pp: degree("--pp", pp, has_pp, asked.pp, args.pp),
            ep: degree("--ep", ep, has_ep, asked.ep, args.ep),
            etp: None,
        }
    }

    fn check_files(&mut self, style: NameStyle) {
        let wanted = match self.place.saved {
            Saved::Release => Some(0),
            Saved::Iteration(number) => i64::try_from(number).ok(),
            Saved::Unnamed => None,
        };
        // The first rank of each stage is what the others of the stage are compared with.
        let mut first: BTreeMap<usize, &Vec<usize>> = BTreeMap::new();
        for (name, rank) in &self.ranks {
            let called = name_of(name);
            let iteration = match (wanted, rank.iteration) {
                (_, None) => Some("it has no iteration".into()),
                (Some(wanted), Some(found)) if wanted != found => {
                    Some(format!("its iteration is {found}, the folder says {wanted}"))
                }
                _ => None,
            };
            let of_file =
                rank.problems.iter().chain(&iteration).map(|problem| format!("{called}: {problem}"));
            self.unsafe_to_join.extend(of_file.clone());
            self.problems.extend(of_file);
            let Some((_, pp, _)) = style.ranks(name) else { continue };
            let other = *first.entry(pp).or_insert(name);
            if let Some(difference) = self.ranks.get(other).and_then(|other| difference(other, rank)) {
                self.problems.push(format!("{called} differs from {}: {difference}", name_of(other)));
            }
        }
    }

    fn missing(&mut self, style: NameStyle, degrees: Degrees) -> Vec<String> {
        let outside: Vec<&Vec<usize>> = self
            .ranks
            .keys()
            .filter(|name| {
                let inside = |(tp, pp, ep)| tp < degrees.tp && pp < degrees.pp && ep < degrees.ep;
                !style.ranks(name).is_some_and(inside)
            })
            .collect();
        self.extra.extend(outside.into_iter().map(|name| name_of(name)));
        let all = (0..degrees.tp)
            .flat_map(|tp| (0..degrees.pp).flat_map(move |pp| (0..degrees.ep).map(move |ep| (tp, pp, ep))));
        let parts = |(tp, pp, ep)| match style {
            NameStyle::Tp => vec![tp],
            NameStyle::TpPp => vec![tp, pp],
            NameStyle::TpEp => vec![tp, ep],
            NameStyle::TpPpEp => vec![tp, pp, ep],
        };
        let missing = all.map(parts).filter(|parts| !self.ranks.contains_key(parts));
        missing.take(LISTED).map(|parts| name_of(&parts)).collect()
    }

    fn stage(&self, style: NameStyle, pp: usize) -> Option<Stage> {
        let mut of_stage =
            self.ranks.iter().filter(|(name, _)| style.ranks(name).is_some_and(|it| it.1 == pp));
        of_stage.next().map(|(_, rank)| rank.stage.clone())
    }

    fn check_stages(&mut self, stages: &[Option<Stage>], args: &Args) {
        let last = stages.len().saturating_sub(1);
        for (number, stage) in stages.iter().enumerate() {
            let Some(stage) = stage else { continue };
            for (what, has, should) in [
                ("the token embedding", stage.embedding, number == 0),
                ("the final norm", stage.final_norm, number == last),
            ] {
                if has != should {
                    let has = if has { "has" } else { "lacks" };
                    self.problems.push(format!("stage {number} of {} {has} {what}", stages.len()));
                }
            }
            if stage.output_layer && number != last {
                self.problems.push(format!("stage {number} of {} has an output layer", stages.len()));
            }
        }
        let layers: Option<usize> = stages.iter().map(|stage| stage.as_ref().map(|stage| stage.layers)).sum();
        if let (Some(layers), Some(said)) = (layers, args.layers)
            && layers != said
        {
            let problem = format!("the stages hold {layers} decoder layers, args say {said}");
            self.unsafe_to_join.push(problem.clone());
            self.problems.push(problem);
        }
    }

    /// Finds how an expert is cut over the tensor parallel ranks, and says when `args` say otherwise.
    fn expert_tensor_parallel(
        &mut self,
        style: NameStyle,
        degrees: Degrees,
        args: &Args,
    ) -> Result<Option<usize>> {
        let with_experts = self.ranks.iter().find_map(|(name, rank)| {
            let (tp, pp, ep) = style.ranks(name)?;
            (tp == 0).then(|| rank.expert.clone().map(|expert| (pp, ep, expert))).flatten()
        });
        let Some((pp, ep, expert)) = with_experts else { return Ok(None) };
        let here = (0..degrees.tp).filter(|tp| self.at(style, *tp, pp, ep).is_some());
        let path = |tp| self.place.dir.join(style.name(tp, pp, ep)).join(RANK_FILE);
        let files: Vec<_> = here.map(|tp| Ok((tp, TorchFile::open(&path(tp))?))).collect::<Result<_>>()?;
        if degrees.tp == 1 {
            return Ok(Some(1));
        }
        let Some(found) = etp::found(&files, &expert, degrees.tp)? else {
            let said = args.etp.filter(|said| *said > 0 && degrees.tp.is_multiple_of(*said));
            return Ok(Some(said.unwrap_or(degrees.tp)));
        };
        if let Some(said) = args.etp.filter(|said| *said != found) {
            let ranks = if found == degrees.tp {
                "no two ranks of an expert".into()
            } else {
                format!("every {found} ranks")
            };
            self.problems.push(format!(
                "args say expert_tensor_parallel_size {said}, but by {expert} it is {found}: {ranks} hold the same"
            ));
        }
        Ok(Some(found))
    }

    fn vocabulary(
        &self,
        style: NameStyle,
        tp: usize,
        vocab_size: Option<usize>,
    ) -> Result<Option<Vocabulary>> {
        // Any part of the experts will do: they all have the embedding.
        let of_rank = |tp: usize| {
            let is_it = |name: &&Vec<usize>| style.ranks(name).is_some_and(|it| (it.0, it.1) == (tp, 0));
            let name = self.ranks.keys().find(is_it)?;
            let (_, shape) = self.ranks[name].tensors.get(&(0, EMBEDDING.to_owned()))?;
            <[usize; 2]>::try_from(shape.as_slice()).ok().map(|[rows, _]| (name, rows))
        };
        let Some((_, per_rank)) = (0..tp).find_map(of_rank) else { return Ok(None) };
        let (mut same, mut last): (usize, Option<Vec<u8>>) = (0, None);
        // From the last row backwards, through as many ranks as it takes.
        for (name, rows) in (0..tp).rev().map_while(of_rank) {
            let file = TorchFile::open(&self.place.dir.join(name_of(name)).join(RANK_FILE))?;
            let bytes = bytes_of(&file, EMBEDDING)?.unwrap_or_default();
            let width = (bytes.len() / rows.max(1)).max(1);
            let last = last.get_or_insert_with(|| bytes[bytes.len().saturating_sub(width)..].to_vec());
            let here = bytes.rchunks_exact(width).take_while(|row| row == last).count();
            same += here;
            if here < rows {
                break;
            }
        }
        let padded = per_rank.saturating_mul(tp);
        let is_default_multiple = padded.is_multiple_of(128 * tp);
        let copied_rows = same.saturating_sub(1);
        Ok(Some(Vocabulary { padded, per_rank, is_default_multiple, copied_rows, vocab_size }))
    }
}

/// The bytes of a tensor of a rank's model.
pub(super) fn bytes_of<'a>(file: &'a TorchFile, name: &str) -> Result<Option<Cow<'a, [u8]>>> {
    let model = file.model();
    let info = model.iter().find(|(_, it, _)| *it == name).and_then(|(.., node)| node.as_tensor());
    Ok(info.map(|info| file.tensor_bytes(info)).transpose()?)
}

/// The first name or shape in which two ranks of a stage differ; they should have the same.
fn difference(one: &RankFile, other: &RankFile) -> Option<String> {
    for (one, other, which) in [(one, other, "lacks"), (other, one, "has also")] {
        if let Some((_, name)) = one.tensors.keys().find(|key| !other.tensors.contains_key(key)) {
            return Some(format!("it {which} {name}"));
        }
    }
    let mut pairs = one.tensors.iter().zip(&other.tensors);
    let ((_, name), (of_one, of_other)) =
        pairs.find_map(|((key, one), (_, other))| (one != other).then_some((key, (one, other))))?;
    Some(format!("its {name} is {} {:?}, not {} {:?}", of_other.0, of_other.1, of_one.0, of_one.1))
}
