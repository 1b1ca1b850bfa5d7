//! Storages of a file, and the bytes of tensors that are views into them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::container::Container;
use super::dtype::TorchDtype;
use super::value::{StorageId, TensorInfo};

/// torch has no tensors of more dimensions.
pub(super) const MAX_DIMENSIONS: usize = 64;

/// Where a storage lies.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    pub(super) dtype: TorchDtype,
    pub(super) place: Range<usize>,
}

/// The storages that a pickle has named so far.
pub(super) struct Storages<'a> {
    container: &'a Container,
    list: Vec<Storage>,
    known: HashMap<(String, TorchDtype), StorageId>,
}

impl<'a> Storages<'a> {
    pub(super) fn new(container: &'a Container) -> Self {
        Self { container, list: Vec::new(), known: HashMap::new() }
    }

    pub(super) fn into_list(self) -> Vec<Storage> {
        self.list
    }

    pub(super) fn dtype(&self, id: StorageId) -> TorchDtype {
        self.list[id.0 as usize].dtype
    }

    /// The storage of a persistent id, which must be there and have the size that it says.
    pub(super) fn find(
        &mut self,
        key: &str,
        dtype: TorchDtype,
        elements: usize,
    ) -> std::result::Result<StorageId, String> {
        let name = format!("data/{}", key.chars().take(200).collect::<String>());
        let place = self.container.place(&name).ok_or_else(|| format!("storage {name} is not in the zip"))?;
        if elements.checked_mul(dtype.size()) != Some(place.len()) {
            let have = place.len();
            return Err(format!(
                "storage {name} should hold {elements} elements of {dtype}, it has {have} bytes"
            ));
        }
        let next = StorageId(self.list.len() as u32);
        let id = *self.known.entry((key.to_owned(), dtype)).or_insert(next);
        if id == next {
            self.list.push(Storage { dtype, place });
        }
        Ok(id)
    }

    /// Whether a tensor lies within its storage, and its numbers do not overflow.
    pub(super) fn check(&self, info: &TensorInfo) -> std::result::Result<(), String> {
        let available = self.list[info.storage.0 as usize].place.len();
        let shape = || format!("a tensor of shape {:?}", info.shape);
        if info.shape.len() != info.strides.len() {
            return Err(format!("{} has {} strides", shape(), info.strides.len()));
        }
        let elements = info.shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        if elements.and_then(|elements| elements.checked_mul(info.dtype.size())).is_none() {
            // A size of zero makes any product zero, but not in every order of multiplying.
            return Err(format!("{} is larger than memory", shape()));
        }
        if elements == Some(0) {
            return Ok(());
        }
        let last = info.shape.iter().zip(&info.strides).try_fold(info.offset, |last, (size, stride)| {
            (size - 1).checked_mul(*stride).and_then(|reach| last.checked_add(reach))
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(info.dtype.size()));
        match end {
            Some(end) if end <= available => Ok(()),
            _ => Err(format!("{} reaches beyond its storage of {available} bytes", shape())),
        }
    }
}

/// The elements of a tensor in row-major order; borrowed when they lie so. `storage` holds all of the tensor: that was
/// checked when it was read.
pub(super) fn contiguous<'a>(storage: &'a [u8], info: &TensorInfo) -> Cow<'a, [u8]> {
    let size = info.dtype.size();
    let bytes = info.bytes();
    if bytes == 0 {
        return Cow::Borrowed(&[]);
    }
    let start = info.offset * size;
    if info.is_contiguous() {
        return Cow::Borrowed(&storage[start..start + bytes]);
    }
    let mut copy = Vec::with_capacity(bytes);
    // The trailing dimensions without gaps are copied at once, the others counted like an odometer.
    let mut run = size;
    let mut outer = info.shape.len();
    while outer > 0 && (info.shape[outer - 1] == 1 || info.strides[outer - 1] * size == run) {
        run *= info.shape[outer - 1];
        outer -= 1;
    }
    let mut index = vec![0; outer];
    loop {
        let skipped: usize = index.iter().zip(&info.strides).map(|(place, stride)| place * stride).sum();
        let from = start + skipped * size;
        copy.extend_from_slice(&storage[from..from + run]);
        // The next index, or the end when all of them went round.
        let Some(dimension) = (0..outer).rev().find(|it| index[*it] + 1 < info.shape[*it]) else { break };
        index[dimension] += 1;
        index[dimension + 1..].fill(0);
    }
    Cow::Owned(copy)
}
