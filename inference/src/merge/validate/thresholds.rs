//! How far outputs must agree.

use candle_core::DType;

use crate::agreement::Threshold;

/// The threshold of models that compute in `compute`; `rounded` is the dtype that the checkpoint's weights were rounded to
/// when those of the sources were not.
///
/// Models of the same numbers give the same bits, so what is allowed is only what a kernel that does not always sum in the
/// same order may move: a relative error of some last bits in f32, and in fewer bits that of a few numbers in a thousand
/// that are rounded to the other neighbour. (A bf16 number moves by 2⁻⁸ to 2⁻⁷ of itself then: of five in a thousand that
/// makes about 4·10⁻⁴, of one 2·10⁻⁴. A wrong epsilon of the norms of a tiny tower makes 6·10⁻⁴ at the first of them.)
///
/// Rounding moves each weight by up to 2⁻⁹ (bf16) or 2⁻¹² (f16) of itself, and the errors of the layers add up.
pub(super) fn threshold(compute: DType, rounded: Option<DType>) -> Threshold {
    match rounded {
        Some(DType::BF16) => Threshold::of_cosine(0.999),
        Some(DType::F16) => Threshold::of_cosine(0.999_98),
        _ => match compute {
            DType::F32 => Threshold { cosine: 1.0 - 1e-9, relative_error: 1e-6 },
            DType::F16 => Threshold { cosine: 1.0 - 1e-8, relative_error: 3e-5 },
            _ => Threshold { cosine: 1.0 - 1e-7, relative_error: 2e-4 },
        },
    }
}

/// The dtype of the fewest bits of a number.
pub(super) fn coarsest<'a>(dtypes: impl Iterator<Item = &'a DType>) -> DType {
    let bits = |dtype: &DType| match dtype {
        DType::BF16 => 8,
        DType::F16 => 11,
        _ => 24,
    };
    dtypes.copied().min_by_key(bits).unwrap_or(DType::F32)
}
