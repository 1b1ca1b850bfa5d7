//! Patch positions in NumPy's file format.

use crate::reason::{Reason, Verdict};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads an `.npy` array of shape [n, 3] of whole numbers: (t, h, w) a row.
///
/// # Errors
/// `patch-positions-mismatch` for another shape, for floats, for negative numbers, or when the file is damaged.
pub fn read_positions(bytes: &[u8]) -> Result<Vec<[i64; 3]>, Verdict> {
    let wrong =
        |detail: &str| Verdict::new(Reason::PatchPositionsMismatch, format!("patch positions: {detail}"));
    let version = bytes.get(MAGIC.len()).copied();
    if !bytes.starts_with(MAGIC) {
        return Err(wrong("this is no .npy file"));
    }
    // Version 1 has a length of two bytes, later ones of four.
    let (length, start) = match (version, bytes.get(8..12)) {
        (Some(1), Some(length)) => (usize::from(u16::from_le_bytes([length[0], length[1]])), 10),
        (Some(2 | 3), Some(length)) => {
            (u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize, 12)
        }
        _ => return Err(wrong("the header is of an unknown version")),
    };
    let end = start + length;
    let header = bytes.get(start..end).and_then(|header| std::str::from_utf8(header).ok());
    let header = header.ok_or_else(|| wrong("the header breaks off"))?;
    let (dtype, rows, by_columns) =
        describe(header).ok_or_else(|| wrong(&format!("the header is {}", header.trim())))?;
    let size = dtype.size();
    let data = &bytes[end..];
    if rows.checked_mul(3 * size) != Some(data.len()) {
        return Err(wrong(&format!("{rows} rows of 3 are not in {} bytes", data.len())));
    }
    let values: Vec<i64> = data.chunks_exact(size).map(|it| dtype.value(it)).collect();
    if values.iter().any(|value| *value < 0) {
        return Err(wrong("a position is negative"));
    }
    if by_columns {
        // NumPy writes a transposed array so: all t, then all h, then all w.
        return Ok((0..rows).map(|row| [0, 1, 2].map(|column| values[column * rows + row])).collect());
    }
    Ok(values.chunks_exact(3).map(|row| [row[0], row[1], row[2]]).collect())
}

/// A little-endian whole number.
#[derive(Clone, Copy)]
struct Whole {
    is_signed: bool,
    bytes: usize,
}

impl Whole {
    fn size(self) -> usize {
        self.bytes
    }

    fn value(self, bytes: &[u8]) -> i64 {
        let is_negative = self.is_signed && bytes.last().is_some_and(|last| *last >= 0x80);
        let mut wide = [if is_negative { 0xff } else { 0 }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        i64::from_le_bytes(wide)
    }
}

/// dtype, rows and whether columns lie behind each other, of a header such as
/// `{'descr': '<i8', 'fortran_order': False, 'shape': (96, 3), }`.
fn describe(header: &str) -> Option<(Whole, usize, bool)> {
    let after = |key: &str| Some(header.split_once(&format!("'{key}':"))?.1.trim_start());
    let order = after("fortran_order")?;
    let by_columns = order.starts_with("True");
    if !by_columns && !order.starts_with("False") {
        return None;
    }
    let descr = after("descr")?.strip_prefix('\'')?.split_once('\'')?.0;
    let dtype = match descr.trim_start_matches(['<', '|', '=']) {
        "i1" => Whole { is_signed: true, bytes: 1 },
        "i2" => Whole { is_signed: true, bytes: 2 },
        "i4" => Whole { is_signed: true, bytes: 4 },
        "i8" => Whole { is_signed: true, bytes: 8 },
        "u1" => Whole { is_signed: false, bytes: 1 },
        "u2" => Whole { is_signed: false, bytes: 2 },
        "u4" => Whole { is_signed: false, bytes: 4 },
        // None that large is a place in a video: as a signed number it is refused as negative.
        "u8" => Whole { is_signed: true, bytes: 8 },
        _ => return None,
    };
    let shape = after("shape")?.strip_prefix('(')?.split_once(')')?.0;
    let mut sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
    let rows = sides.next()?.parse().ok()?;
    (sides.next()? == "3" && sides.next().is_none()).then_some((dtype, rows, by_columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn whole_numbers_of_every_width() {
        let expected = [[0, 1, 2], [30, 4, 255]];
        let flat = || expected.as_flattened().iter().copied();
        let wide: Vec<u8> = flat().flat_map(|value: i64| value.to_le_bytes()).collect();
        assert_eq!(read_positions(&npy("<i8", "(2, 3)", &wide)).unwrap(), expected);
        let narrow: Vec<u8> = flat().map(|value| value as u8).collect();
        assert_eq!(read_positions(&npy("|u1", "(2, 3)", &narrow)).unwrap(), expected);
        // As NumPy saves `np.stack([t, h, w]).T`.
        let columns: Vec<u8> =
            [0, 30, 1, 4, 2, 255_i64].iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut transposed = npy("<u8", "(2, 3)", &columns);
        let order = transposed.windows(5).position(|it| it == b"False").unwrap();
        transposed[order..order + 5].copy_from_slice(b"True ");
        assert_eq!(read_positions(&transposed).unwrap(), expected);
        // 255 as a signed byte is -1.
        read_positions(&npy("|i1", "(2, 3)", &narrow)).unwrap_err();
    }

    #[test]
    fn what_is_no_array_of_positions_is_refused() {
        for bytes in [
            b"PK".to_vec(),
            npy("<f8", "(1, 3)", &[0; 24]),
            npy("<i8", "(1, 2)", &[0; 16]),
            npy("<i8", "(3,)", &[0; 24]),
            npy("<i8", "(2, 3)", &[0; 24]),
            npy("<i8", "(99999999999999999, 3)", &[0; 24]),
            npy("<i8", "(1, 3)", &[0; 24])[..20].to_vec(),
        ] {
            read_positions(&bytes).unwrap_err();
        }
    }
}
