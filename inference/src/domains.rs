//! Who sees whom: the boundaries of the sequences that lie behind each other in one row.
//!
//! One type for both attention controls of the model: the windows of the vision tower and the sub-samples of a pack.

use crate::error::{ModelError, Result};

/// The boundaries of sequences that lie behind each other, as variable-length attention kernels take them.
///
/// Token `i` attends within its own sequence only. `cu_seqlens` starts with 0, rises, and ends with the number of
/// all tokens; it cannot be left out, and no sequence is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionDomains {
    cu_seqlens: Vec<u32>,
    max_seqlen: u32,
}

/// What becomes of padding in [`AttentionDomains::from_sub_sample_ids`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaddingRule {
    /// As the reference trainer does: the padding joins the last sub-sequence, and `max_seqlen` is counted without
    /// it. Where that makes `max_seqlen` too small for its own `cu_seqlens`, a kernel leaves tokens out; see
    /// [`AttentionDomains::check`].
    Trainer,
    /// The padding is a sub-sequence of its own.
    OwnSequence,
}

impl AttentionDomains {
    /// One sequence.
    ///
    /// # Errors
    /// [`ModelError::Domains`] for no token.
    pub fn single(tokens: u32) -> Result<Self> {
        Self::from_lengths([tokens])
    }

    /// Sequences of these lengths, in tokens.
    ///
    /// # Errors
    /// [`ModelError::Domains`] for an empty sequence, for no sequence, or for more than `u32::MAX` tokens.
    pub fn from_lengths(lengths: impl IntoIterator<Item = u32>) -> Result<Self> {
        let mut cu_seqlens = vec![0_u32];
        let (mut total, mut max_seqlen) = (0_u32, 0);
        for (number, length) in lengths.into_iter().enumerate() {
            if length == 0 {
                return Err(ModelError::Domains(format!("sequence {number} is empty")));
            }
            total = total
                .checked_add(length)
                .ok_or_else(|| ModelError::Domains("more tokens than a 32-bit boundary can tell".into()))?;
            cu_seqlens.push(total);
            max_seqlen = max_seqlen.max(length);
        }
        if max_seqlen == 0 {
            return Err(ModelError::Domains("there are no sequences".into()));
        }
        Ok(Self { cu_seqlens, max_seqlen })
    }

    /// The boundaries of a packed sample, as `cu_lengths` holds them.
    ///
    /// # Errors
    /// [`ModelError::Domains`] unless it starts with 0 and rises.
    pub fn from_cu_lengths(cu_lengths: &[u32]) -> Result<Self> {
        if cu_lengths.first() != Some(&0) || cu_lengths.windows(2).any(|pair| pair[0] >= pair[1]) {
            let detail = format!("cu_lengths must start with 0 and rise, it is {}", short(cu_lengths));
            return Err(ModelError::Domains(detail));
        }
        Self::from_lengths(cu_lengths.windows(2).map(|pair| pair[1] - pair[0]))
    }

    /// The boundaries that an attention mask of sub-sample numbers stands for: 1, 1, 2, 2, 2, …, 0 for padding.
    ///
    /// # Errors
    /// [`ModelError::Domains`] unless the numbers rise by one and padding stands at the end.
    pub fn from_sub_sample_ids(ids: &[u32], padding: PaddingRule) -> Result<Self> {
        if u32::try_from(ids.len()).is_err() {
            return Err(ModelError::Domains("more tokens than a 32-bit boundary can tell".into()));
        }
        let real = ids.iter().position(|&id| id == 0).unwrap_or(ids.len());
        let runs: Vec<&[u32]> = ids[..real].chunk_by(|a, b| a == b).collect();
        let ascending = runs.iter().zip(1..).all(|(run, number)| run[0] == number);
        if real == 0 || !ascending || ids[real..].iter().any(|&id| id != 0) {
            let detail = format!("sub-sample ids must be 1, 2, 3 … and 0 at the end only: {}", short(ids));
            return Err(ModelError::Domains(detail));
        }
        let lengths = runs.iter().map(|run| run.len() as u32);
        let pads = (ids.len() - real) as u32;
        if pads == 0 {
            return Self::from_lengths(lengths);
        }
        match padding {
            PaddingRule::OwnSequence => Self::from_lengths(lengths.chain([pads])),
            PaddingRule::Trainer => {
                let mut domains = Self::from_lengths(lengths)?;
                if let Some(last) = domains.cu_seqlens.last_mut() {
                    *last += pads;
                }
                Ok(domains)
            }
        }
    }

    /// Padded at the end to a multiple of `multiple` tokens (sequence or context parallelism), with the padding as
    /// one more sequence: a kernel that is not told of it leaves those rows undefined.
    ///
    /// # Errors
    /// [`ModelError::Domains`] for a multiple of 0.
    pub fn padded_to(&self, multiple: u32) -> Result<Self> {
        if multiple == 0 {
            return Err(ModelError::Domains("padding to a multiple of 0".into()));
        }
        match self.tokens().next_multiple_of(multiple) - self.tokens() {
            0 => Ok(self.clone()),
            pads => Self::from_lengths(self.lengths().chain([pads])),
        }
    }

    /// The running sums: one more than there are sequences.
    pub fn cu_seqlens(&self) -> &[u32] {
        &self.cu_seqlens
    }

    /// The longest sequence, in tokens.
    pub fn max_seqlen(&self) -> u32 {
        self.max_seqlen
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> u32 {
        self.cu_seqlens.last().copied().unwrap_or(0)
    }

    /// Tokens of each sequence.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = u32> {
        self.cu_seqlens.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// The place of each sequence in the row.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = std::ops::Range<usize>> {
        self.cu_seqlens.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }

    /// The position of each token in its own sequence: 0, 1, 2, …, starting anew at each boundary.
    pub fn positions(&self) -> Vec<u32> {
        self.lengths().flat_map(|length| 0..length).collect()
    }

    /// Whether a kernel that trusts `max_seqlen` sees every token.
    ///
    /// # Errors
    /// [`ModelError::Domains`] after [`PaddingRule::Trainer`], where the last sequence with its padding is longer than
    /// `max_seqlen`.
    pub fn check(&self) -> Result<()> {
        match self.lengths().max() {
            Some(longest) if longest > self.max_seqlen => Err(ModelError::Domains(format!(
                "max_seqlen is {}, but a sequence has {longest} tokens (its padding was not counted)",
                self.max_seqlen
            ))),
            _ => Ok(()),
        }
    }
}

fn short(numbers: &[u32]) -> String {
    const SHOWN: usize = 12;
    let more = if numbers.len() > SHOWN { ", …" } else { "" };
    let texts: Vec<String> = numbers.iter().take(SHOWN).map(u32::to_string).collect();
    format!("[{}{more}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the reference trainer.
    const IDS: [u32; 13] = [1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 0, 0];

    #[test]
    fn sub_sample_ids_by_the_trainers_rule_and_by_the_right_one() {
        let trainer = AttentionDomains::from_sub_sample_ids(&IDS, PaddingRule::Trainer).unwrap();
        assert_eq!(trainer.cu_seqlens(), [0, 2, 5, 7, 8, 13]);
        assert_eq!(trainer.max_seqlen(), 3);
        assert!(trainer.check().unwrap_err().to_string().contains("a sequence has 5 tokens"));
        let right = AttentionDomains::from_sub_sample_ids(&IDS, PaddingRule::OwnSequence).unwrap();
        assert_eq!(right.cu_seqlens(), [0, 2, 5, 7, 8, 11, 13]);
        right.check().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let by_ids = |ids: &[u32]| AttentionDomains::from_sub_sample_ids(ids, PaddingRule::OwnSequence);
        for ids in [&[][..], &[0, 0], &[1, 0, 2], &[2, 2], &[1, 1, 3], &[1, 2, 1]] {
            by_ids(ids).unwrap_err();
        }
        for cu_lengths in [&[][..], &[0], &[1, 2], &[0, 5, 5], &[0, 5, 3]] {
            AttentionDomains::from_cu_lengths(cu_lengths).unwrap_err();
        }
        AttentionDomains::from_lengths([u32::MAX, 1]).unwrap_err();
        AttentionDomains::single(1).unwrap().padded_to(0).unwrap_err();
    }

    #[test]
    fn padding_is_a_sequence_of_its_own() {
        let pack = AttentionDomains::from_lengths([6, 7]).unwrap();
        assert_eq!(pack.padded_to(4).unwrap().cu_seqlens(), [0, 6, 13, 16]);
        assert_eq!(pack.padded_to(13).unwrap(), pack);
    }

    proptest! {
        #[test]
        fn boundaries_lengths_and_positions_tell_the_same(lengths in prop::collection::vec(1_u32..50, 1..20)) {
            let domains = AttentionDomains::from_lengths(lengths.clone()).unwrap();
            prop_assert_eq!(domains.lengths().collect::<Vec<_>>(), lengths.clone());
            prop_assert_eq!(&AttentionDomains::from_cu_lengths(domains.cu_seqlens()).unwrap(), &domains);
            prop_assert_eq!(domains.max_seqlen(), *lengths.iter().max().unwrap());
            let ids: Vec<u32> =
                lengths.iter().zip(1..).flat_map(|(&length, id)| vec![id; length as usize]).collect();
            let by_ids = AttentionDomains::from_sub_sample_ids(&ids, PaddingRule::Trainer).unwrap();
            prop_assert_eq!(&by_ids, &domains);
            for range in domains.ranges() {
                let positions = &domains.positions()[range.clone()];
                prop_assert!(positions.iter().copied().eq(0..range.len() as u32));
            }
        }
    }
}
