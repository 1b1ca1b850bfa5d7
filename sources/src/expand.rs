//! Which inputs paths, URLs and globs name.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glob::{MatchOptions, Pattern};
use packd_storage::{Object, StorageError, Stores, is_url, local_path};

use crate::error::SourceError;
use crate::input::Input;

/// The files and objects that paths, URLs and globs name, globs in the order of their names.
///
/// # Errors
/// A pattern that names nothing, a file that two patterns name, a folder.
pub fn expand(patterns: &[String], stores: &Arc<Stores>) -> Result<Vec<Input>, SourceError> {
    let mut seen = HashSet::new();
    let mut inputs = Vec::new();
    let repeated = |path: &Path| SourceError::Repeated { path: path.to_owned() };
    for pattern in patterns {
        if is_url(pattern) {
            for object in objects(pattern, stores)? {
                let input = Input::from_object(object)?;
                if !seen.insert(PathBuf::from(&input.name)) {
                    return Err(repeated(input.path()));
                }
                inputs.push(input);
            }
            continue;
        }
        for path in files(pattern)? {
            let input = Input::from_path(&path)?;
            let real = path.canonicalize().map_err(|error| SourceError::io(&path, error))?;
            if !seen.insert(real) {
                return Err(repeated(&path));
            }
            inputs.push(input);
        }
    }
    Ok(inputs)
}

fn is_glob(pattern: &str) -> bool {
    pattern.contains(GLOB)
}

const GLOB: [char; 3] = ['*', '?', '['];

fn missing(pattern: &str) -> SourceError {
    SourceError::Missing { pattern: pattern.to_owned() }
}

fn wrong(pattern: &str, message: impl ToString) -> SourceError {
    SourceError::Pattern { pattern: pattern.to_owned(), message: message.to_string() }
}

fn files(pattern: &str) -> Result<Vec<PathBuf>, SourceError> {
    let local = local_path(pattern).unwrap_or_default();
    // A file may be called `a[1].jsonl`: a name that exists is no glob.
    if local.exists() {
        return Ok(vec![local]);
    }
    if !is_glob(pattern) {
        return Err(missing(pattern));
    }
    let paths = glob::glob(&local.to_string_lossy()).map_err(|error| wrong(pattern, error))?;
    let mut found = Vec::new();
    for path in paths {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            SourceError::io(&path, error.into())
        })?;
        if path.is_file() {
            found.push(path);
        }
    }
    if found.is_empty() { Err(missing(pattern)) } else { Ok(found) }
}

fn objects(pattern: &str, stores: &Arc<Stores>) -> Result<Vec<Object>, SourceError> {
    let host = pattern.split_once("://").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default();
    if is_glob(host) || pattern.starts_with("http") && pattern.contains(['*', '[']) {
        return Err(wrong(pattern, "globs name objects in one bucket, and none on an https server"));
    }
    let named = stores.object(pattern)?;
    match named.version() {
        Ok(_) => return Ok(vec![named]),
        Err(StorageError::Missing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(first) = pattern.find(GLOB) else { return Err(missing(pattern)) };
    let folder = pattern[..first].rfind('/').map_or("", |slash| &pattern[..slash]);
    let glob = Pattern::new(pattern).map_err(|error| wrong(pattern, error))?;
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let mut found = Vec::new();
    for (name, _) in stores.object(folder)?.list()? {
        let url = format!("{folder}/{name}");
        if glob.matches_with(&url, options) {
            found.push(stores.object(&url)?);
        }
    }
    if found.is_empty() { Err(missing(pattern)) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_name_objects_in_order() {
        let stores = Stores::new(Default::default()).unwrap();
        stores.insert("s3://b", Arc::new(object_store::memory::InMemory::new()));
        for name in ["x/b.jsonl", "x/a.jsonl", "x/sub/c.jsonl", "y.jsonl", "x/[1].jsonl"] {
            stores.object(&format!("s3://b/{name}")).unwrap().write(name.into()).unwrap();
        }
        let names = |pattern: &str| -> Result<Vec<String>, SourceError> {
            Ok(expand(&[pattern.to_owned()], &stores)?.into_iter().map(|input| input.name).collect())
        };
        assert_eq!(names("s3://b/x/[ab].jsonl").unwrap(), ["s3://b/x/a.jsonl", "s3://b/x/b.jsonl"]);
        assert_eq!(names("s3://b/*.jsonl").unwrap(), ["s3://b/y.jsonl"]);
        assert_eq!(names("s3://b/*/sub/?.jsonl").unwrap(), ["s3://b/x/sub/c.jsonl"]);
        assert_eq!(
            names("s3://b/x/[1].jsonl").unwrap(),
            ["s3://b/x/[1].jsonl"],
            "a name that exists is no glob"
        );
        assert!(matches!(names("s3://b/none"), Err(SourceError::Missing { .. })));
        assert!(matches!(names("s3://b/x/*.txt"), Err(SourceError::Missing { .. })));
        let twice = ["s3://b/y.jsonl".to_owned(), "s3://b/*.jsonl".to_owned()];
        assert!(matches!(expand(&twice, &stores), Err(SourceError::Repeated { .. })));
    }
}
