//! How an expert is cut over the tensor parallel ranks.
//!
//! With expert tensor parallel degree `e`, rank `t` holds part `t mod e` of an expert: ranks `e` apart hold the same, and
//! the ranks between hold other parts.

use super::read::bytes_of;
use crate::error::Result;
use crate::torch_file::TorchFile;

/// The least divisor of `tp` such that all ranks so far apart hold the same of an expert; `files` are those of the ranks
/// that are there, with their numbers. None when it takes one of the others to tell.
pub(super) fn found(files: &[(usize, TorchFile)], expert: &str, tp: usize) -> Result<Option<usize>> {
    let is_same = |one: &TorchFile, other: &TorchFile| -> Result<bool> {
        Ok(bytes_of(one, expert)? == bytes_of(other, expert)?)
    };
    let mut is_open = false;
    for degree in (1..tp).filter(|degree| tp.is_multiple_of(*degree)) {
        let mut pairs = 0;
        let mut holds = true;
        for (number, (rank, file)) in files.iter().enumerate() {
            let like = files[..number].iter().find(|(other, _)| other % degree == rank % degree);
            let Some((_, other)) = like else { continue };
            pairs += 1;
            holds = is_same(file, other)?;
            if !holds {
                break;
            }
        }
        if holds && pairs > 0 {
            return Ok(Some(degree));
        }
        is_open |= pairs == 0;
    }
    Ok(Some(tp).filter(|_| !is_open))
}
