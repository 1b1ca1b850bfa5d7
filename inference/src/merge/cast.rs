//! Floating point numbers of one kind to another, as torch's `Tensor.to` rounds them.

use candle_core::DType;
use half::{bf16, f16};

/// Numbers `from` as numbers `to`, both little-endian, and how many finite ones are infinite there. The nearest number
/// is taken, of two the even one; doubles go through singles, as in torch.
///
/// Other kinds than F64, F32, F16 and BF16 give nothing.
pub(super) fn cast(bytes: &[u8], from: DType, to: DType) -> (Vec<u8>, usize) {
    match from {
        DType::F64 => decoded(bytes, to, |it: [u8; 8]| {
            let value = f64::from_le_bytes(it);
            (value as f32, value.is_finite())
        }),
        DType::F32 => decoded(bytes, to, |it: [u8; 4]| with_finite(f32::from_le_bytes(it))),
        DType::F16 => decoded(bytes, to, |it: [u8; 2]| with_finite(f16::from_le_bytes(it).to_f32())),
        DType::BF16 => decoded(bytes, to, |it: [u8; 2]| with_finite(bf16::from_le_bytes(it).to_f32())),
        _ => (Vec::new(), 0),
    }
}

fn with_finite(value: f32) -> (f32, bool) {
    (value, value.is_finite())
}

fn decoded<const N: usize>(
    bytes: &[u8],
    to: DType,
    decode: impl Fn([u8; N]) -> (f32, bool),
) -> (Vec<u8>, usize) {
    let values = bytes.as_chunks::<N>().0.iter().map(|number| decode(*number));
    match to {
        DType::F32 => encoded(values, |value| (value.to_le_bytes(), value.is_finite())),
        DType::F16 => encoded(values, |value| {
            let value = f16::from_f32(value);
            (value.to_le_bytes(), value.is_finite())
        }),
        DType::BF16 => encoded(values, |value| {
            let value = bf16::from_f32(value);
            (value.to_le_bytes(), value.is_finite())
        }),
        // Numbers of fewer bits only become longer. (Those that are doubles already are not cast.)
        DType::F64 => encoded(values, |value| (f64::from(value).to_le_bytes(), value.is_finite())),
        _ => (Vec::new(), 0),
    }
}

fn encoded<const N: usize>(
    values: impl ExactSizeIterator<Item = (f32, bool)>,
    encode: impl Fn(f32) -> ([u8; N], bool),
) -> (Vec<u8>, usize) {
    let mut bytes = vec![0; values.len() * N];
    let mut lost = 0;
    for (place, (value, was_finite)) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        let (number, is_finite) = encode(value);
        *place = number;
        lost += usize::from(was_finite && !is_finite);
    }
    (bytes, lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_f32(values: &[f32], to: DType) -> (Vec<u8>, usize) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        cast(&bytes, DType::F32, to)
    }

    #[test]
    fn halves_go_to_the_even_number() {
        // 1 + 2⁻⁸ lies between the bf16 numbers 0x3f80 and 0x3f81, 1 + 3·2⁻⁸ between 0x3f81 and 0x3f82.
        let (bytes, lost) = from_f32(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], DType::BF16);
        assert_eq!((bytes, lost), (vec![0x80, 0x3f, 0x82, 0x3f], 0));
    }

    #[test]
    fn what_becomes_infinite_is_counted() {
        assert_eq!(from_f32(&[65504.0, 65519.0, 65520.0, -1e9, f32::INFINITY], DType::F16).1, 2);
        assert_eq!(from_f32(&[1e30, f32::MAX], DType::BF16).1, 1);
        let (bytes, lost) = cast(&1e300_f64.to_le_bytes(), DType::F64, DType::F32);
        assert_eq!((bytes, lost), (f32::INFINITY.to_le_bytes().to_vec(), 1));
        assert_eq!(cast(&1.5_f64.to_le_bytes(), DType::F64, DType::F16), (vec![0x00, 0x3e], 0));
    }

    #[test]
    fn doubles_hold_what_singles_do() {
        assert_eq!(from_f32(&[0.1], DType::F64).0, f64::from(0.1_f32).to_le_bytes());
    }

    #[test]
    fn nothing_changes_on_the_way_up() {
        let numbers: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for kind in [DType::BF16, DType::F16] {
            let up = cast(&numbers, kind, DType::F32).0;
            let back = cast(&up, DType::F32, kind).0;
            let same = numbers.chunks(2).zip(back.chunks(2)).filter(|(a, b)| a == b).count();
            // Not-a-numbers may come back as others of their kind.
            let nans = (0..=u16::MAX).filter(|it| match kind {
                DType::F16 => f16::from_bits(*it).is_nan(),
                _ => bf16::from_bits(*it).is_nan(),
            });
            assert!(same + nans.count() >= 65536, "{same}");
        }
    }
}
