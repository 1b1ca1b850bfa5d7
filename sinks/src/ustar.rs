//! Plain ustar members: no PAX records, no clock, no user.

use tar::{EntryType, Header};

/// Bytes of a tar block.
pub(crate) const BLOCK: u64 = 512;
/// A tar ends at a multiple of this, as tar itself writes it.
pub(crate) const RECORD: u64 = 10_240;
/// The longest name a ustar header holds without a prefix.
pub(crate) const MAX_NAME: usize = 100;
/// The largest member: eleven octal digits.
pub(crate) const MAX_SIZE: u64 = (1 << 33) - 1;

/// Bytes that a member of `size` content bytes takes in a tar: its header and its content in whole blocks.
pub fn member_bytes(size: u64) -> u64 {
    BLOCK + size.next_multiple_of(BLOCK)
}

/// The header of one member; `name` is at most [`MAX_NAME`] bytes of ASCII and `size` at most [`MAX_SIZE`].
pub(crate) fn header(name: &str, size: u64) -> [u8; BLOCK as usize] {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header.set_mtime(0);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    *header.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_bytes() {
        let bytes = header("packd_000000001.img0_0.jpg", 70_000);
        let text = |range: std::ops::Range<usize>| String::from_utf8_lossy(&bytes[range]).into_owned();
        assert_eq!(text(0..27), "packd_000000001.img0_0.jpg\0");
        assert_eq!(text(100..108), "0000644\0");
        assert_eq!(text(108..116), "0000000\0");
        assert_eq!(text(116..124), "0000000\0");
        assert_eq!(text(124..136), "00000210560\0");
        assert_eq!(text(136..148), "00000000000\0");
        assert_eq!(bytes[156], b'0');
        assert_eq!(text(257..265), "ustar\x0000");
        assert!(bytes[157..257].iter().chain(&bytes[265..]).all(|&b| b == 0));
        let sum: u32 =
            bytes.iter().enumerate().map(|(i, &b)| if (148..156).contains(&i) { 32 } else { b as u32 }).sum();
        assert_eq!(text(148..156), format!("{sum:07o}\0"));
        assert_eq!(member_bytes(0), 512);
        assert_eq!(member_bytes(513), 1536);
    }

    #[test]
    fn the_longest_name_and_the_largest_size_fit() {
        let name = "k".repeat(MAX_NAME);
        let bytes = header(&name, MAX_SIZE);
        let back = Header::from_byte_slice(&bytes);
        assert_eq!(back.path_bytes(), name.as_bytes());
        assert_eq!(back.size().unwrap(), MAX_SIZE);
    }
}
