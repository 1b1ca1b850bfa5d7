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
    copy_elements(storage, info, 0..bytes / size, &mut copy);
    Cow::Owned(copy)
}

/// Appends some of a tensor's elements, counted in row-major order, without reading the others.
pub(super) fn copy_elements(storage: &[u8], info: &TensorInfo, elements: Range<usize>, out: &mut Vec<u8>) {
    let size = info.dtype.size();
    let start = info.offset * size;
    if elements.is_empty() || info.bytes() == 0 {
        return;
    }
    if info.is_contiguous() {
        out.extend_from_slice(&storage[start + elements.start * size..start + elements.end * size]);
        return;
    }
    // The trailing dimensions without gaps are copied at once, the last of the others in a loop, and those before it
    // counted like an odometer.
    let mut run = size;
    let mut outer = info.shape.len();
    while outer > 0 && (info.shape[outer - 1] == 1 || info.strides[outer - 1] * size == run) {
        run *= info.shape[outer - 1];
        outer -= 1;
    }
    // A tensor with gaps has a dimension that is none of the run.
    let Some(last) = outer.checked_sub(1) else { return };
    let (lines, stride) = (info.shape[last], info.strides[last] * size);
    let (mut at, end) = (elements.start * size, elements.end * size);
    while at < end {
        // Which run it is: a line of the last dimension, and an index of those before.
        let (mut before, line) = (at / run / lines, at / run % lines);
        let mut from = start + line * stride;
        for (length, stride) in info.shape[..last].iter().zip(&info.strides).rev() {
            from += before % length * stride * size;
            before /= length;
        }
        let within = at % run;
        if within > 0 || end - at < run {
            let part = (run - within).min(end - at);
            out.extend_from_slice(&storage[from + within..from + within + part]);
            at += part;
            continue;
        }
        let whole = ((end - at) / run).min(lines - line);
        copy_runs(storage, from..from + run, stride, whole, out);
        at += whole * run;
    }
}

/// Appends `count` runs of bytes, each `stride` behind the one before. Elements of usual sizes are copied without the
/// overhead of copying slices.
fn copy_runs(storage: &[u8], first: Range<usize>, stride: usize, count: usize, out: &mut Vec<u8>) {
    fn elements<const N: usize>(
        storage: &[u8],
        start: usize,
        stride: usize,
        count: usize,
        out: &mut Vec<u8>,
    ) {
        let end = out.len();
        out.resize(end + count * N, 0);
        for (line, element) in out[end..].as_chunks_mut::<N>().0.iter_mut().enumerate() {
            let from = start + line * stride;
            element.copy_from_slice(&storage[from..from + N]);
        }
    }
    match first.len() {
        2 => elements::<2>(storage, first.start, stride, count, out),
        4 => elements::<4>(storage, first.start, stride, count, out),
        _ => {
            for line in 0..count {
                let from = first.start + line * stride;
                out.extend_from_slice(&storage[from..from + first.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views of a storage of 16-bit numbers that count from 0.
    fn check(shape: &[usize], strides: &[usize], offset: usize) {
        let storage: Vec<u8> = (0..4000_u16).flat_map(u16::to_le_bytes).collect();
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        let all: usize = shape.iter().product();
        let element = |number: usize| {
            let mut left = number;
            let mut place = offset;
            for (length, stride) in shape.iter().zip(&strides).rev() {
                place += left % length * stride;
                left /= length;
            }
            (place as u16).to_le_bytes()
        };
        let expected: Vec<u8> = (0..all).flat_map(element).collect();
        let info = TensorInfo {
            dtype: TorchDtype::BFloat16,
            shape: shape.clone(),
            storage: StorageId(0),
            offset,
            strides: strides.clone(),
        };
        assert_eq!(contiguous(&storage, &info), expected, "{shape:?} {strides:?}");
        for start in 0..=all {
            for end in [start, start + 1, start + 7, (start + all) / 2, all] {
                let elements = start..end.clamp(start, all);
                let mut part = vec![1];
                copy_elements(&storage, &info, elements.clone(), &mut part);
                assert_eq!(part[1..], expected[elements.start * 2..elements.end * 2], "{elements:?}");
            }
        }
    }

    #[test]
    fn any_part_of_any_view_is_copied() {
        // As it lies, with gaps between rows, transposed, every other element, the same row again and again.
        check(&[5, 6], &[6, 1], 3);
        check(&[5, 6], &[12, 1], 3);
        check(&[5, 6], &[1, 5], 0);
        check(&[5, 6], &[12, 2], 1);
        check(&[5, 6], &[0, 1], 9);
        // Columns of a cut, and dimensions that were moved.
        check(&[7, 3], &[9, 1], 6);
        check(&[3, 4, 2, 3], &[3, 18, 9, 1], 0);
        check(&[3, 1, 4, 5], &[1, 77, 15, 3], 2);
        check(&[11], &[13], 5);
        check(&[0, 4], &[1, 1], 0);
    }
}
