//! Names in a checkpoint tree.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{ModelError, Result};

/// The file that says which checkpoint of a tree is the last.
pub const TRACKER: &str = "latest_checkpointed_iteration.txt";
/// The file of weights in a rank directory.
pub const RANK_FILE: &str = "model_optim_rng.pt";

/// Which checkpoint of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Saved {
    /// `release`: converted weights, of no training.
    Release,
    /// `iter_%07d`
    Iteration(u64),
    /// A folder of another name that holds the ranks themselves.
    Unnamed,
}

impl Saved {
    /// The folder's name below the root.
    pub fn folder(self) -> Option<String> {
        match self {
            Self::Release => Some("release".into()),
            Self::Iteration(number) => Some(format!("iter_{number:07}")),
            Self::Unnamed => None,
        }
    }

    fn of_folder(name: &str) -> Self {
        let number = name.strip_prefix("iter_").filter(|digits| digits.len() >= 7).and_then(digits);
        match number {
            Some(number) => Self::Iteration(number),
            None if name == "release" => Self::Release,
            None => Self::Unnamed,
        }
    }
}

/// Which ranks the names of rank directories consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum NameStyle {
    /// `mp_rank_TT`
    #[serde(rename = "1D (tp)")]
    Tp,
    /// `mp_rank_TT_PPP`
    #[serde(rename = "2D (tp, pp)")]
    TpPp,
    /// `mp_rank_TT_EEE`
    #[serde(rename = "2D (tp, ep)")]
    TpEp,
    /// `mp_rank_TT_PPP_EEE`
    #[serde(rename = "3D (tp, pp, ep)")]
    TpPpEp,
}

impl NameStyle {
    /// How many ranks a name has.
    pub fn parts(self) -> usize {
        match self {
            Self::Tp => 1,
            Self::TpPp | Self::TpEp => 2,
            Self::TpPpEp => 3,
        }
    }

    /// Megatron's name of a rank directory of this style.
    pub fn name(self, tp: usize, pp: usize, ep: usize) -> String {
        match self {
            Self::Tp => format!("mp_rank_{tp:02}"),
            Self::TpPp => format!("mp_rank_{tp:02}_{pp:03}"),
            Self::TpEp => format!("mp_rank_{tp:02}_{ep:03}"),
            Self::TpPpEp => format!("mp_rank_{tp:02}_{pp:03}_{ep:03}"),
        }
    }

    /// The style that Megatron gives a checkpoint of these degrees.
    pub fn of(pp: usize, ep: usize) -> Self {
        match (pp > 1, ep > 1) {
            (false, false) => Self::Tp,
            (true, false) => Self::TpPp,
            (false, true) => Self::TpEp,
            (true, true) => Self::TpPpEp,
        }
    }

    /// (tp, pp, ep) of the ranks in a name of this style.
    pub(super) fn ranks(self, parts: &[usize]) -> Option<(usize, usize, usize)> {
        match (self, parts) {
            (Self::Tp, &[tp]) => Some((tp, 0, 0)),
            (Self::TpPp, &[tp, pp]) => Some((tp, pp, 0)),
            (Self::TpEp, &[tp, ep]) => Some((tp, 0, ep)),
            (Self::TpPpEp, &[tp, pp, ep]) => Some((tp, pp, ep)),
            _ => None,
        }
    }
}

impl std::fmt::Display for NameStyle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tp => "1D (tp)",
            Self::TpPp => "2D (tp, pp)",
            Self::TpEp => "2D (tp, ep)",
            Self::TpPpEp => "3D (tp, pp, ep)",
        })
    }
}

/// The numbers in a rank directory's name; none for a name that Megatron would not write.
pub(super) fn rank_parts(name: &str) -> Option<Vec<usize>> {
    let parts: Vec<&str> = name.strip_prefix("mp_rank_")?.split('_').collect();
    if parts.len() > 3 {
        return None;
    }
    let number = |(place, part): (usize, &&str)| {
        let width = if place == 0 { 2 } else { 3 };
        // 0-filled to the width, and wider only when it has to be; no training has a hundred thousand ranks.
        let wider = width + 1..=5;
        let fits = part.len() == width || (wider.contains(&part.len()) && !part.starts_with('0'));
        fits.then(|| digits(part)).flatten()
    };
    parts.iter().enumerate().map(|it| number(it).and_then(|rank| usize::try_from(rank).ok())).collect()
}

fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Where the ranks of a checkpoint lie.
pub(super) struct Place {
    pub(super) root: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) saved: Saved,
    /// What is wrong with the way to it.
    pub(super) problem: Option<String>,
}

/// Finds the checkpoint that `dir` means.
pub(super) fn locate(dir: &Path) -> Result<Place> {
    let wrong = |detail: String| ModelError::Checkpoint { path: dir.to_owned(), detail };
    let names = list(dir)?;
    if names.iter().any(|name| name == TRACKER) {
        let saved = tracked(&dir.join(TRACKER))?;
        let folder = saved.folder().map(|folder| dir.join(folder)).unwrap_or(dir.to_owned());
        if !folder.is_dir() {
            return Err(wrong(format!("{TRACKER} says {}, which is not there", folder.display())));
        }
        return Ok(Place { root: dir.to_owned(), dir: folder, saved, problem: None });
    }
    let has_ranks = names.iter().any(|name| name.starts_with("mp_rank_"));
    if has_ranks || super::distributed::is_one(&names) {
        // A relative path such as "." has its name only in full.
        let full = dir.canonicalize().unwrap_or(dir.to_owned());
        let name = full.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let saved = Saved::of_folder(name);
        let parent = full.parent().filter(|_| saved != Saved::Unnamed);
        let root = parent.filter(|parent| parent.join(TRACKER).is_file()).map(Path::to_owned);
        return Ok(Place { root: root.unwrap_or(dir.to_owned()), dir: dir.to_owned(), saved, problem: None });
    }
    let mut found: Vec<Saved> = names.iter().map(|name| Saved::of_folder(name)).collect();
    found.retain(|saved| *saved != Saved::Unnamed);
    match (found.as_slice(), found.first().and_then(|saved| saved.folder())) {
        (&[saved], Some(folder)) => {
            let problem = format!("{TRACKER} is missing: Megatron does not find {folder} without it");
            let inner = dir.join(folder);
            Ok(Place { root: dir.to_owned(), dir: inner, saved, problem: Some(problem) })
        }
        ([], _) => {
            Err(wrong(format!("this is no Megatron checkpoint: there is no {TRACKER} and no mp_rank_…")))
        }
        (several, _) => {
            let names: Vec<String> = several.iter().filter_map(|saved| saved.folder()).collect();
            Err(wrong(format!("there is no {TRACKER}; name one of {}", names.join(", "))))
        }
    }
}

/// What the tracker file says: `release`, or an iteration from 1 on.
fn tracked(path: &Path) -> Result<Saved> {
    let read = |source| ModelError::Read { path: path.to_owned(), source };
    let text = std::fs::read(path).map_err(read)?;
    let text = String::from_utf8_lossy(&text[..text.len().min(200)]);
    let text = text.trim();
    match digits(text) {
        Some(number) if number > 0 => Ok(Saved::Iteration(number)),
        None if text == "release" => Ok(Saved::Release),
        _ => Err(ModelError::Checkpoint {
            path: path.to_owned(),
            detail: format!("{text:?} is neither \"release\" nor an iteration from 1 on"),
        }),
    }
}

/// The names in a folder, sorted.
pub(super) fn list(dir: &Path) -> Result<Vec<String>> {
    let read = |source| ModelError::Read { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(read)? {
        // Megatron writes no names that are not UTF-8.
        names.extend(entry.map_err(read)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_megatron_only() {
        assert_eq!(rank_parts("mp_rank_07"), Some(vec![7]));
        assert_eq!(rank_parts("mp_rank_00_001_012"), Some(vec![0, 1, 12]));
        assert_eq!(rank_parts("mp_rank_123_1000"), Some(vec![123, 1000]));
        for name in [
            "mp_rank_0",
            "mp_rank_000",
            "mp_rank_00_01",
            "mp_rank_00_0a1",
            "mp_rank_00_000_000_000",
            "mp_rank_",
            "mp_rank_99999999",
        ] {
            assert_eq!(rank_parts(name), None, "{name}");
        }
        assert_eq!(NameStyle::of(2, 2).name(1, 2, 3), "mp_rank_01_002_003");
        assert_eq!(Saved::of_folder("iter_0000017"), Saved::Iteration(17));
        assert_eq!(Saved::of_folder("iter_17"), Saved::Unnamed);
    }
}
