//! What a bin can hold.

use super::{error::PackError, item::Item};

/// The widest bin, in units of `pad_to_multiple`: a few counters are kept for each length.
const MAX_CAPACITY: u32 = 1 << 26;

/// What one pack can hold at most. All limits hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Tokens of a pack.
    pub seq_len: u32,
    /// Sub-samples of a pack.
    pub max_samples: u32,
    /// Images of a pack; `None`: no limit.
    pub max_images: Option<u32>,
    /// Vision patches of a pack; `None`: no limit.
    pub max_patches: Option<u64>,
    /// Every sub-sample reserves its length rounded up to this multiple, for trainers that pad each
    /// sub-sample (context parallelism); 1: no rounding.
    pub pad_to_multiple: u32,
}

/// Why a sample cannot be packed even alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// No tokens: the sample would vanish in a pack.
    #[error("it has no tokens")]
    Empty,
    /// Longer than a pack.
    #[error("its {length} tokens reserve {reserved}, more than seq_len {seq_len}")]
    TooLong {
        /// Its tokens.
        length: u32,
        /// Its tokens rounded up to `pad_to_multiple`.
        reserved: u64,
        /// The limit.
        seq_len: u32,
    },
    /// More images than a pack may hold.
    #[error("it has {images} images, more than max_images {max_images}")]
    TooManyImages {
        /// Its images.
        images: u32,
        /// The limit.
        max_images: u32,
    },
    /// More vision patches than a pack may hold.
    #[error("it has {patches} vision patches, more than max_patches {max_patches}")]
    TooManyPatches {
        /// Its patches.
        patches: u32,
        /// The limit.
        max_patches: u64,
    },
}

impl Limits {
    /// Limits of `seq_len` tokens and nothing else.
    pub fn new(seq_len: u32) -> Self {
        Self { seq_len, max_samples: u32::MAX, max_images: None, max_patches: None, pad_to_multiple: 1 }
    }

    /// Whether the sample can be packed at all. Cheap: meant to be asked for every sample, so that
    /// the misfits are rejected with their reason before [`pack`](super::pack) sees the rest.
    ///
    /// # Errors
    /// The first limit that the sample breaks alone.
    pub fn check(&self, item: &Item) -> Result<(), Misfit> {
        if item.length == 0 {
            return Err(Misfit::Empty);
        }
        let reserved = self.reserved(item.length);
        if reserved > u64::from(self.seq_len) {
            return Err(Misfit::TooLong { length: item.length, reserved, seq_len: self.seq_len });
        }
        match (self.max_images, self.max_patches) {
            (Some(max_images), _) if item.images > max_images => {
                Err(Misfit::TooManyImages { images: item.images, max_images })
            }
            (_, Some(max_patches)) if u64::from(item.patches) > max_patches => {
                Err(Misfit::TooManyPatches { patches: item.patches, max_patches })
            }
            _ => Ok(()),
        }
    }

    /// The room that a sample of `length` tokens takes in a pack, in tokens.
    pub fn reserved(&self, length: u32) -> u64 {
        u64::from(length).next_multiple_of(u64::from(self.pad_to_multiple.max(1)))
    }

    /// Whether the limits make sense by themselves.
    ///
    /// # Errors
    /// [`PackError::Limit`] names the limit and what it must be.
    pub fn validate(&self) -> Result<(), PackError> {
        let fault = |limit, value, rule| Err(PackError::Limit { limit, value, rule });
        if self.max_samples == 0 {
            return fault("max_samples", 0, "a pack must hold at least one sample");
        }
        if self.pad_to_multiple == 0 {
            return fault("pad_to_multiple", 0, "must be at least 1 (1: no padding)");
        }
        if self.capacity() == 0 {
            return fault("seq_len", self.seq_len.into(), "must be at least 1, and at least pad_to_multiple");
        }
        if self.capacity() > MAX_CAPACITY {
            return fault("seq_len", self.seq_len.into(), "must be at most 67108864 times pad_to_multiple");
        }
        Ok(())
    }

    /// The capacity of a bin in units of `pad_to_multiple`. All the packing happens in these units:
    /// reserved lengths are multiples, so the rest of `seq_len` can never be used.
    pub(super) fn capacity(&self) -> u32 {
        self.seq_len / self.pad_to_multiple
    }

    /// The reserved length in units of `pad_to_multiple`; samples of one class are interchangeable.
    #[inline]
    pub fn class(&self, length: u32) -> u32 {
        if self.pad_to_multiple == 1 { length } else { length.div_ceil(self.pad_to_multiple) }
    }

    /// Whether anything but tokens and samples is limited.
    pub(super) fn limits_vision(&self) -> bool {
        self.max_images.is_some() || self.max_patches.is_some()
    }
}
