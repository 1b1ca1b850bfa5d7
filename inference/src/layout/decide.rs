//! Whether the second number of a two-part name counts pipeline stages or parts of the experts.

use std::collections::BTreeMap;

use super::AskedDegrees;
use super::rank::RankFile;
use super::tree::NameStyle;

/// A style, why it was chosen, and what speaks against it.
pub(super) struct Decision {
    pub(super) style: NameStyle,
    pub(super) reason: String,
    pub(super) problems: Vec<String>,
}

type Evidence = Option<(NameStyle, String)>;

/// Decides about two-part names: `ranks` are the files by their two numbers.
pub(super) fn two_parts(asked: &AskedDegrees, ranks: &BTreeMap<Vec<usize>, RankFile>) -> Decision {
    let (asked, keys, args) = (by_caller(asked), by_keys(ranks), by_args(ranks));
    let mut problems = Vec::new();
    let chosen = [&asked, &keys, &args].into_iter().flatten().next().cloned();
    let (style, reason) = chosen.unwrap_or_else(|| {
        let reason = "nothing in the files tells stages from experts; stages are the common case";
        problems.push(format!("the names are ambiguous: {reason}; give --pp or --ep"));
        (NameStyle::TpPp, reason.to_owned())
    });
    for (other, against) in [keys, args].into_iter().flatten() {
        if other != style {
            problems
                .push(format!("the names are taken for {style}, but {against}, which speaks for {other}"));
        }
    }
    Decision { style, reason, problems }
}

fn by_caller(asked: &AskedDegrees) -> Evidence {
    let style = match (asked.pp, asked.ep) {
        (None | Some(1), Some(2..)) => NameStyle::TpEp,
        (Some(2..), None | Some(1)) => NameStyle::TpPp,
        // Two-part names have one of the two: the other is what varies.
        (None, Some(1)) => NameStyle::TpPp,
        (Some(1), None) => NameStyle::TpEp,
        _ => return None,
    };
    let given = [("--pp", asked.pp), ("--ep", asked.ep)];
    let given: Vec<String> =
        given.iter().filter_map(|(name, degree)| degree.map(|degree| format!("{name} {degree}"))).collect();
    Some((style, format!("the caller gave {}", given.join(" and "))))
}

fn by_args(ranks: &BTreeMap<Vec<usize>, RankFile>) -> Evidence {
    ranks.values().find_map(|rank| {
        let (pp, ep) = (rank.args.pp, rank.args.ep);
        let text = format!(
            "args say pipeline_model_parallel_size {} and expert_model_parallel_size {}",
            pp.unwrap_or(1),
            ep.unwrap_or(1)
        );
        match (pp.unwrap_or(1) > 1, ep.unwrap_or(1) > 1) {
            (true, false) => Some((NameStyle::TpPp, text)),
            (false, true) => Some((NameStyle::TpEp, text)),
            _ => None,
        }
    })
}

/// A stage has a share of the layers, the first the embedding and the last the final norm; a part of the experts has all
/// of them, and experts.
fn by_keys(ranks: &BTreeMap<Vec<usize>, RankFile>) -> Evidence {
    let mut seconds: BTreeMap<usize, &RankFile> = BTreeMap::new();
    for (parts, rank) in ranks {
        seconds.entry(*parts.get(1)?).or_insert(rank);
    }
    let files: Vec<&RankFile> = seconds.values().copied().collect();
    let is_whole = |rank: &&RankFile| rank.stage.embedding && rank.stage.final_norm;
    let same_names = files.windows(2).all(|pair| pair[0].tensors.keys().eq(pair[1].tensors.keys()));
    if files.iter().all(is_whole) && same_names && files.iter().all(|rank| rank.stage.local_experts > 0) {
        let reason =
            "every second number has the embedding, the same layers, the final norm, and experts of its own";
        return Some((NameStyle::TpEp, reason.into()));
    }
    if files.iter().any(is_whole) {
        return None;
    }
    let later_embedding = seconds.iter().any(|(number, rank)| *number > 0 && rank.stage.embedding);
    let norms = seconds.values().filter(|rank| rank.stage.final_norm).count();
    let norm_is_last = norms == 0 || files.last().is_some_and(|last| last.stage.final_norm);
    if !later_embedding && norms <= 1 && norm_is_last {
        let reason = "the second numbers share the model: only the first has the embedding, only the last the final norm";
        return Some((NameStyle::TpPp, reason.into()));
    }
    None
}
