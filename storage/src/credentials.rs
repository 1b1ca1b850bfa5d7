//! Keys from the files of the AWS command line, for whoever has them there and not in the environment.

use std::path::{Path, PathBuf};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};

/// Adds the keys, the region and the endpoint of `AWS_PROFILE` (or `default`), where `builder` has none of its own.
pub(crate) fn with_profile(mut builder: AmazonS3Builder) -> AmazonS3Builder {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |variable: &str, name: &str| {
        std::env::var_os(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from)
    };
    let profile = std::env::var("AWS_PROFILE").unwrap_or_else(|_| "default".into());
    let credentials = read(&file("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
    let config = read(&file("AWS_CONFIG_FILE", "config"));
    let in_config = if profile == "default" { profile.clone() } else { format!("profile {profile}") };
    use AmazonS3ConfigKey::{AccessKeyId, Endpoint, Region, SecretAccessKey, Token};
    let has_key = builder.get_config_value(&AccessKeyId).is_some();
    let found = [
        (AccessKeyId, value(&credentials, &profile, "aws_access_key_id"), has_key),
        (SecretAccessKey, value(&credentials, &profile, "aws_secret_access_key"), has_key),
        (Token, value(&credentials, &profile, "aws_session_token"), has_key),
        (Region, value(&config, &in_config, "region"), false),
        (Endpoint, value(&config, &in_config, "endpoint_url"), false),
    ];
    for (key, value, known) in found {
        if let Some(value) = value.filter(|_| !known && builder.get_config_value(&key).is_none()) {
            builder = builder.with_config(key, value);
        }
    }
    builder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// A value of a section of an INI file.
fn value(text: &str, section: &str, key: &str) -> Option<String> {
    let mut here = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            here = name.trim() == section;
        } else if let Some((name, value)) = line.split_once('=')
            && here
            && name.trim() == key
        {
            return Some(value.trim().to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_in_its_section_only() {
        let text = "# c\n[default]\nregion = eu-1\n\n[profile a]\nregion=us-2\naws_access_key_id = K=1\n";
        assert_eq!(value(text, "default", "region").as_deref(), Some("eu-1"));
        assert_eq!(value(text, "profile a", "region").as_deref(), Some("us-2"));
        assert_eq!(value(text, "profile a", "aws_access_key_id").as_deref(), Some("K=1"));
        assert_eq!(value(text, "default", "aws_access_key_id"), None);
        assert_eq!(value("", "default", "region"), None);
    }
}
