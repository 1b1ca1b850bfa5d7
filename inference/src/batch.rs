//! Packed batches: sub-samples behind each other, never without their boundaries.

use candle_core::{DType, Device, Tensor};
use packd_contracts::ImageGrid;

use crate::domains::AttentionDomains;
use crate::error::{ModelError, Result};

/// The label of a token that is not trained on.
pub const IGNORE: i64 = -100;

/// An image (or the frames of one grid row) as the vision tower takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ImagePatches {
    rows: Vec<f32>,
    grid: ImageGrid,
    positions: Vec<[u32; 3]>,
}

impl ImagePatches {
    /// Patches in block order: `rows` are `grid.patches()` times channels·patch² normalised values. The positions are
    /// those of the grid.
    ///
    /// # Errors
    /// [`ModelError::Batch`] when rows and grid do not belong together.
    pub fn new(rows: Vec<f32>, grid: ImageGrid, merge_size: u32) -> Result<Self> {
        let positions = block_positions(grid, merge_size)?;
        Self::with_positions(rows, grid, positions)
    }

    /// Like [`new`](Self::new) with positions (t, h, w) of its own, in block order as the rows are.
    ///
    /// # Errors
    /// [`ModelError::Batch`] when rows, grid and positions do not belong together.
    pub fn with_positions(rows: Vec<f32>, grid: ImageGrid, positions: Vec<[u32; 3]>) -> Result<Self> {
        let patches = grid.patches() as usize;
        if patches == 0
            || positions.len() != patches
            || !rows.len().is_multiple_of(patches)
            || rows.is_empty()
        {
            return Err(ModelError::Batch(format!(
                "an image grid of {grid} has {patches} patches, there are {} positions and {} values",
                positions.len(),
                rows.len()
            )));
        }
        Ok(Self { rows, grid, positions })
    }

    /// Its patch grid.
    pub fn grid(&self) -> ImageGrid {
        self.grid
    }

    /// The normalised values, a patch behind the other.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// (t, h, w) of each row.
    pub fn positions(&self) -> &[[u32; 3]] {
        &self.positions
    }
}

/// (t, h, w) of each patch of a grid in block order: the `merge_size`² patches of a token lie behind each other.
///
/// # Errors
/// [`ModelError::Batch`] when the grid is no multiple of the blocks.
pub fn block_positions(grid: ImageGrid, merge_size: u32) -> Result<Vec<[u32; 3]>> {
    if merge_size == 0 || !grid.h.is_multiple_of(merge_size) || !grid.w.is_multiple_of(merge_size) {
        let detail =
            format!("an image grid of {grid} does not consist of blocks of {merge_size}x{merge_size}");
        return Err(ModelError::Batch(detail));
    }
    let mut positions = Vec::with_capacity(grid.patches() as usize);
    for t in 0..grid.t {
        for block_row in (0..grid.h).step_by(merge_size as usize) {
            for block_column in (0..grid.w).step_by(merge_size as usize) {
                for y in 0..merge_size {
                    positions.extend((0..merge_size).map(|x| [t, block_row + y, block_column + x]));
                }
            }
        }
    }
    Ok(positions)
}

/// One training sample in tokens, with its images.
#[derive(Debug, Clone, PartialEq)]
pub struct SubSample {
    /// Token ids; an image stands as one image token for each merged block.
    pub input_ids: Vec<u32>,
    /// The token itself where it is trained on, [`IGNORE`] elsewhere; as many as there are ids.
    pub labels: Vec<i64>,
    /// Its images in the order of their tokens.
    pub images: Vec<ImagePatches>,
}

impl SubSample {
    /// A sample of text whose every token is trained on.
    pub fn text(input_ids: Vec<u32>) -> Self {
        let labels = input_ids.iter().map(|&id| i64::from(id)).collect();
        Self { input_ids, labels, images: Vec::new() }
    }

    /// All of `parts` as one sequence, each part seeing those before it. This is what training sees when the boundaries
    /// of a pack get lost; as a sample of its own it is made on purpose only.
    pub fn joined(parts: &[Self]) -> Self {
        Self {
            input_ids: parts.iter().flat_map(|part| part.input_ids.iter().copied()).collect(),
            labels: parts.iter().flat_map(|part| part.labels.iter().copied()).collect(),
            images: parts.iter().flat_map(|part| part.images.iter().cloned()).collect(),
        }
    }
}

/// Sub-samples behind each other in one row, as the model takes them.
///
/// The boundaries are made with the row and cannot be taken off it, so a pack never becomes one long sequence by
/// mistake.
#[derive(Debug, Clone)]
pub struct PackedBatch {
    input_ids: Vec<u32>,
    labels: Vec<i64>,
    domains: AttentionDomains,
    rows: Vec<f32>,
    grids: Vec<ImageGrid>,
    /// Images of each sub-sample.
    image_counts: Vec<usize>,
    patch_positions: Vec<[u32; 3]>,
}

impl PackedBatch {
    /// Packs sub-samples; one is a pack as well.
    ///
    /// # Errors
    /// [`ModelError::Domains`] for an empty sub-sample or for none, [`ModelError::Batch`] for labels of another number.
    pub fn pack(sub_samples: &[SubSample]) -> Result<Self> {
        let length = |sub: &SubSample| u32::try_from(sub.input_ids.len()).unwrap_or(u32::MAX);
        let domains = AttentionDomains::from_lengths(sub_samples.iter().map(length))?;
        let mut batch = Self {
            input_ids: Vec::new(),
            labels: Vec::new(),
            domains,
            rows: Vec::new(),
            grids: Vec::new(),
            image_counts: Vec::new(),
            patch_positions: Vec::new(),
        };
        let mut row_width = None;
        for (number, sub) in sub_samples.iter().enumerate() {
            if sub.labels.len() != sub.input_ids.len() {
                let (ids, labels) = (sub.input_ids.len(), sub.labels.len());
                let detail = format!("sub-sample {number} has {ids} token ids and {labels} labels");
                return Err(ModelError::Batch(detail));
            }
            batch.input_ids.extend_from_slice(&sub.input_ids);
            batch.labels.extend_from_slice(&sub.labels);
            batch.image_counts.push(sub.images.len());
            for image in &sub.images {
                let width = image.rows.len() / image.positions.len();
                if *row_width.get_or_insert(width) != width {
                    let detail = format!("sub-sample {number}: rows of {width} values among others");
                    return Err(ModelError::Batch(detail));
                }
                batch.rows.extend_from_slice(&image.rows);
                batch.grids.push(image.grid);
                batch.patch_positions.extend_from_slice(&image.positions);
            }
        }
        Ok(batch)
    }

    /// Token ids of the row.
    pub fn input_ids(&self) -> &[u32] {
        &self.input_ids
    }

    /// Labels of the row, not shifted.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The boundaries of the sub-samples.
    pub fn domains(&self) -> &AttentionDomains {
        &self.domains
    }

    /// Grids of all images.
    pub fn grids(&self) -> &[ImageGrid] {
        &self.grids
    }

    /// Grids of the images of each sub-sample.
    pub fn grids_of_sub_samples(&self) -> impl Iterator<Item = &[ImageGrid]> {
        let mut rest = self.grids.as_slice();
        self.image_counts.iter().map(move |count| {
            let (own, others) = rest.split_at(*count);
            rest = others;
            own
        })
    }

    /// (t, h, w) of all patches.
    pub fn patch_positions(&self) -> &[[u32; 3]] {
        &self.patch_positions
    }

    /// Rows [patches, channels·patch²] of all images, or `None` without images.
    ///
    /// # Errors
    /// [`ModelError::Tensor`].
    pub fn pixel_values(&self, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
        let patches = self.patch_positions.len();
        if patches == 0 {
            return Ok(None);
        }
        let rows = Tensor::from_slice(&self.rows, (patches, self.rows.len() / patches), device)?;
        Ok(Some(rows.to_dtype(dtype)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_patches_lie_behind_each_other() {
        let grid = ImageGrid { t: 1, h: 4, w: 4 };
        let positions = block_positions(grid, 2).unwrap();
        assert_eq!(positions[..4], [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]);
        assert_eq!(positions[4], [0, 0, 2]);
        assert_eq!(positions[8], [0, 2, 0]);
        block_positions(grid, 3).unwrap_err();
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let grid = ImageGrid { t: 1, h: 2, w: 2 };
        ImagePatches::new(vec![0.0; 7], grid, 2).unwrap_err();
        ImagePatches::with_positions(vec![0.0; 8], grid, vec![[0; 3]; 3]).unwrap_err();
        let mut sub = SubSample::text(vec![1, 2]);
        sub.labels.pop();
        PackedBatch::pack(&[sub]).unwrap_err();
        PackedBatch::pack(&[]).unwrap_err();
        PackedBatch::pack(&[SubSample::text(vec![])]).unwrap_err();
    }
}
