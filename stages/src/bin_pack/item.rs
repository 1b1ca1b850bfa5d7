//! What the packer knows of a sample.

/// One sample as the packer sees it: 16 bytes, so that 100 million samples are 1.6 GB.
///
/// A sample is named by its place in the slice given to [`pack`](super::pack), its *ordinal*.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Item {
    /// Tokens of the sample, as the trainer counts them.
    pub length: u32,
    /// Images of the sample.
    pub images: u32,
    /// Vision patches of all its images together (before merging).
    pub patches: u32,
    /// What its members take in a tar shard, in 512-byte blocks. Not a limit of a pack.
    pub stored: u32,
}
