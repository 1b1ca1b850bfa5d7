//! URLs of objects.

use std::path::PathBuf;

use object_store::path::Path;

use crate::error::StorageError;

const SCHEMES: [&str; 9] = ["s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https"];

/// Whether a name is a URL of an object in a store.
pub fn is_url(name: &str) -> bool {
    name.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// The path that a name means on this machine: itself, or what follows `file://`. `None` for a URL of a store.
pub fn local_path(name: &str) -> Option<PathBuf> {
    if is_url(name) {
        return None;
    }
    let path = name
        .strip_prefix("file://")
        .map(|path| path.strip_prefix("localhost").filter(|path| path.starts_with('/')).unwrap_or(path));
    Some(PathBuf::from(path.unwrap_or(name)))
}

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) scheme: String,
    /// The URL up to the key: scheme, and bucket or host.
    pub(crate) root: String,
    pub(crate) key: Path,
}

impl Location {
    /// Keys of buckets are taken as they are written, paths of `http` URLs are percent-decoded.
    pub(crate) fn parse(url: &str) -> Result<Self, StorageError> {
        let wrong = |detail: String| StorageError::Url { url: url.to_owned(), detail };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("not a URL".into()))?;
        if !SCHEMES.contains(&scheme) {
            return Err(wrong(format!("`{scheme}://` is not supported; packd reads {}", SCHEMES.join(", "))));
        }
        let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            return Err(wrong("it names no bucket or host".into()));
        }
        let key = key.trim_end_matches('/');
        let key = match scheme {
            "http" | "https" if host.contains('@') => {
                return Err(wrong(
                    "URLs with a name and password are not supported: they would stand in the output".into(),
                ));
            }
            "http" | "https" if key.contains(['?', '#']) => {
                return Err(wrong("URLs with a query are not supported".into()));
            }
            "http" | "https" => Path::from_url_path(key),
            _ => Path::parse(key),
        };
        let key = key.map_err(|error| wrong(error.to_string()))?;
        Ok(Self { scheme: scheme.to_owned(), root: format!("{scheme}://{host}"), key })
    }
}

/// `base/relative`, with `.` and `..` resolved; `None` where that is not below `base`.
pub(crate) fn join(base: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(format!("{}/{}", base.trim_end_matches('/'), parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths_are_told_apart() {
        assert!(is_url("s3://b/k") && is_url("https://h/k") && is_url("gs://b"));
        assert!(!is_url("a/b.jsonl") && !is_url("file:///a") && !is_url("data://x") && !is_url("C:/x"));
        assert_eq!(local_path("a.jsonl"), Some("a.jsonl".into()));
        assert_eq!(local_path("file:///a b/%20"), Some("/a b/%20".into()));
        assert_eq!(local_path("file://localhost/a"), Some("/a".into()));
        assert_eq!(local_path("s3://b/k"), None);
    }

    #[test]
    fn a_url_has_a_root_and_a_key() {
        let parse = |url| Location::parse(url).map(|found| (found.root, found.key.to_string()));
        assert_eq!(parse("s3://b/a b/100%20.jpg").unwrap(), ("s3://b".into(), "a b/100%20.jpg".into()));
        assert_eq!(parse("https://h:8080/a%20b/c").unwrap(), ("https://h:8080".into(), "a b/c".into()));
        assert_eq!(parse("s3://b").unwrap(), ("s3://b".into(), String::new()));
        assert_eq!(parse("s3://b/out/").unwrap().1, "out");
        for wrong in
            ["s3:///k", "ftp://h/k", "s3://b/a/../k", "http://h/k?x=1", "https://me:secret@h/k", "plain"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_stay_below_their_base() {
        assert_eq!(join("s3://b/x", "a/./b//c.jpg").as_deref(), Some("s3://b/x/a/b/c.jpg"));
        assert_eq!(join("s3://b/x/", "a/../c.jpg").as_deref(), Some("s3://b/x/c.jpg"));
        assert_eq!(join("s3://b/x", "../c.jpg"), None);
        assert_eq!(join("s3://b/x", "a/../../c.jpg"), None);
    }
}
