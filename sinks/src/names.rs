//! Names of shards and packed samples.

/// True for a prefix that shard names and keys may start with: 1 to 48 of `A-Z a-z 0-9 _ -`.
///
/// Energon takes everything before the first dot as the key, and a ustar name ends at 100 bytes.
pub fn is_valid_prefix(prefix: &str) -> bool {
    prefix.len() <= 48 && is_valid_key(prefix)
}

/// True for a key that Energon reads back as it was written.
pub(crate) fn is_valid_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// The file name of a shard: `<prefix>-000042.tar`. Numbers run over all nodes.
pub fn shard_name(prefix: &str, number: u64) -> String {
    format!("{prefix}-{number:06}.tar")
}

/// The key of a packed sample: `<prefix>_000000042`. Pack numbers run over all nodes.
pub fn pack_key(prefix: &str, pack: u64) -> String {
    format!("{prefix}_{pack:09}")
}

/// The key of a packed sample whose number counts within its node (`scope: node`): `<prefix>_n3_000000042`.
pub fn pack_key_of_node(prefix: &str, node: u64, pack: u64) -> String {
    format!("{prefix}_n{node}_{pack:09}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(shard_name("packd", 3), "packd-000003.tar");
        assert_eq!(pack_key("packd", 12), "packd_000000012");
        assert_eq!(pack_key_of_node("packd", 2, 12), "packd_n2_000000012");
        assert!(is_valid_prefix("a-B_9"));
        for bad in ["", "a.b", "a/b", "ä", &"a".repeat(49)] {
            assert!(!is_valid_prefix(bad), "{bad}");
        }
    }
}
