//! The kinds of numbers that torch stores.

use serde::Serialize;

/// A torch dtype, or the bytes of an untyped storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(into = "&'static str")]
pub enum TorchDtype {
    /// `torch.bfloat16`
    BFloat16,
    /// `torch.float16`
    Half,
    /// `torch.float32`
    Float,
    /// `torch.float64`
    Double,
    /// `torch.int64`
    Long,
    /// `torch.int32`
    Int,
    /// `torch.int16`
    Short,
    /// `torch.int8`
    Char,
    /// `torch.uint8`, and untyped storages
    Byte,
    /// `torch.bool`
    Bool,
    /// `torch.uint16`
    UInt16,
    /// `torch.uint32`
    UInt32,
    /// `torch.uint64`
    UInt64,
    /// `torch.float8_e4m3fn`
    Float8E4M3,
    /// `torch.float8_e5m2`
    Float8E5M2,
}

use TorchDtype::*;

/// dtype, name in Python, name of the storage class in pickles ("" for those that have none), bytes.
const TABLE: [(TorchDtype, &str, &str, usize); 15] = [
    (BFloat16, "bfloat16", "BFloat16Storage", 2),
    (Half, "float16", "HalfStorage", 2),
    (Float, "float32", "FloatStorage", 4),
    (Double, "float64", "DoubleStorage", 8),
    (Long, "int64", "LongStorage", 8),
    (Int, "int32", "IntStorage", 4),
    (Short, "int16", "ShortStorage", 2),
    (Char, "int8", "CharStorage", 1),
    (Byte, "uint8", "ByteStorage", 1),
    (Bool, "bool", "BoolStorage", 1),
    (UInt16, "uint16", "", 2),
    (UInt32, "uint32", "", 4),
    (UInt64, "uint64", "", 8),
    (Float8E4M3, "float8_e4m3fn", "", 1),
    (Float8E5M2, "float8_e5m2", "", 1),
];

impl TorchDtype {
    /// Bytes an element.
    pub fn size(self) -> usize {
        self.row().3
    }

    /// The name in Python, without `torch.`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The dtype of a name in Python, without `torch.`.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The class of `torch` that a pickle names for storages of this kind; none for kinds newer than these classes.
    pub(super) fn storage_class(self) -> Option<&'static str> {
        Some(self.row().2).filter(|class| !class.is_empty())
    }

    pub(super) fn from_storage_class(class: &str) -> Option<Self> {
        if class == "UntypedStorage" {
            return Some(Byte);
        }
        TABLE.iter().find(|row| !row.2.is_empty() && row.2 == class).map(|row| row.0)
    }

    fn row(self) -> &'static (TorchDtype, &'static str, &'static str, usize) {
        // The table lists the variants in their order; a test holds it to that.
        &TABLE[self as usize]
    }
}

impl From<TorchDtype> for &'static str {
    fn from(dtype: TorchDtype) -> Self {
        dtype.name()
    }
}

impl std::fmt::Display for TorchDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_the_variants_in_their_order() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, place, "{}", row.1);
            assert_eq!(TorchDtype::from_name(row.1), Some(row.0));
        }
        assert_eq!(TorchDtype::from_storage_class("HalfStorage"), Some(Half));
        assert_eq!(TorchDtype::from_storage_class("UntypedStorage"), Some(Byte));
        assert_eq!(TorchDtype::from_storage_class(""), None);
    }
}
