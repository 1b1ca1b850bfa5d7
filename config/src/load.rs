//! From file, environment and flags to one checked [`Config`].

use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use serde_json::{Map, Value};

use crate::choices::{DuplicateId, SampleClass, Scope, SystemTurns};
use crate::config::Config;

/// A commented example file; it holds the defaults.
pub const EXAMPLE: &str = include_str!("example.yaml");

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not YAML, or a value has the wrong type.
    #[error("{origin}: {message}")]
    Parse {
        /// File or environment variable.
        origin: String,
        /// What is wrong, with its place.
        message: String,
    },
    /// A key that no option has.
    #[error("{origin}: there is no option `{key}`{suggestion}")]
    UnknownKey {
        /// File or environment variable.
        origin: String,
        /// The key as written.
        key: String,
        /// `, did you mean …?`, or nothing.
        suggestion: String,
    },
    /// Values that contradict each other or are out of range.
    #[error("`{key}`: {message}")]
    Invalid {
        /// The option.
        key: &'static str,
        /// What is wrong and what to write instead.
        message: String,
    },
}

impl Default for Config {
    /// The values that the flags document.
    fn default() -> Self {
        let command = Self::augment_args(clap::Command::new("packd"));
        let matches = command.get_matches_from(["packd"]);
        Self::from_arg_matches(&matches)
            .unwrap_or_else(|error| unreachable!("defaults always parse: {error}"))
    }
}

impl Config {
    /// Reads a YAML text over the defaults. `origin` names it in errors.
    ///
    /// # Errors
    /// Unknown keys (with a suggestion), wrong types, contradictions.
    pub fn from_yaml(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let mut layers = Self::defaults();
        overlay(&mut layers, yaml_layer(text, origin)?);
        finish(layers, origin)
    }

    /// Defaults ← file ← environment (`PACKD_…`) ← flags that were given.
    ///
    /// `matches` are the matches of a command whose arguments hold [`Config`]'s; `environment` yields
    /// the variables.
    ///
    /// # Errors
    /// As [`Config::from_yaml`], and a file that cannot be read.
    pub fn layered(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        matches: &ArgMatches,
    ) -> Result<Self, ConfigError> {
        let mut layers = Self::defaults();
        let mut origin = "command line".to_owned();
        if let Some(path) = file {
            origin = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Read { path: origin.clone(), source })?;
            overlay(&mut layers, yaml_layer(&text, &origin)?);
        }
        for (name, value) in environment {
            if let Some(key) = name.strip_prefix("PACKD_").filter(|key| !NOT_OPTIONS.contains(key)) {
                overlay(&mut layers, environment_layer(&name, &key.to_lowercase(), &value)?);
            }
        }
        overlay(&mut layers, flags_layer(matches));
        finish(layers, &origin)
    }

    /// The options as `(name, value)` in the order of the struct, without those of
    /// [`Config::RUNTIME_KEYS`]: what decides the bytes of a run.
    pub fn deciding(&self) -> Map<String, Value> {
        let mut map = to_map(self);
        map.retain(|key, _| !Self::RUNTIME_KEYS.contains(&key.as_str()));
        map
    }

    /// The JSON Schema of the configuration file.
    pub fn json_schema() -> Value {
        schemars::schema_for!(Self).to_value()
    }

    fn defaults() -> Map<String, Value> {
        to_map(&Self::default())
    }
}

/// Variables that share the prefix but belong to the program, not to the configuration.
const NOT_OPTIONS: [&str; 2] = ["LOG", "CONFIG"];

fn to_map(config: &Config) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(map)) => map,
        other => unreachable!("the configuration is a map of plain values: {other:?}"),
    }
}

fn overlay(base: &mut Map<String, Value>, layer: Map<String, Value>) {
    base.extend(layer);
}

fn yaml_layer(text: &str, origin: &str) -> Result<Map<String, Value>, ConfigError> {
    let parse = |message: String| ConfigError::Parse { origin: origin.to_owned(), message };
    let layer: Option<Map<String, Value>> =
        serde_saphyr::from_str(text).map_err(|error| parse(error.to_string()))?;
    let layer = layer.unwrap_or_default();
    layer.keys().try_for_each(|key| known(key, origin))?;
    Ok(layer)
}

fn environment_layer(name: &str, key: &str, value: &str) -> Result<Map<String, Value>, ConfigError> {
    known(key, name)?;
    let is_text = matches!(key, "caption_prompt" | "template_date" | "shard_prefix" | "profile" | "model");
    let value = if is_text {
        Value::String(value.to_owned())
    } else {
        serde_saphyr::from_str(value)
            .map_err(|error| ConfigError::Parse { origin: name.to_owned(), message: error.to_string() })?
    };
    let is_list = matches!(key, "input" | "allow_root" | "passthrough");
    let value = match value {
        Value::String(text) if is_list => Value::Array(vec![Value::String(text)]),
        other => other,
    };
    Ok(Map::from_iter([(key.to_owned(), value)]))
}

/// Only flags that stand on the command line: a flag's default must not hide the file's value.
fn flags_layer(matches: &ArgMatches) -> Map<String, Value> {
    let Ok(given) = Config::from_arg_matches(matches) else { return Map::new() };
    let mut layer = to_map(&given);
    layer.retain(|key, _| {
        matches.try_contains_id(key).is_ok() && matches.value_source(key) == Some(ValueSource::CommandLine)
    });
    layer
}

fn known(key: &str, origin: &str) -> Result<(), ConfigError> {
    let keys = Config::defaults();
    if keys.contains_key(key) {
        return Ok(());
    }
    let nearest = keys
        .keys()
        .map(|candidate| (strsim::jaro_winkler(key, candidate), candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.75);
    let suggestion = nearest.map(|(_, name)| format!(", did you mean `{name}`?")).unwrap_or_default();
    Err(ConfigError::UnknownKey { origin: origin.to_owned(), key: key.to_owned(), suggestion })
}

fn finish(layers: Map<String, Value>, origin: &str) -> Result<Config, ConfigError> {
    // One key at a time first: serde's own message would not say which key was wrong.
    let defaults = Config::defaults();
    for (key, value) in &layers {
        let mut one = defaults.clone();
        one.insert(key.clone(), value.clone());
        if let Err(error) = serde_json::from_value::<Config>(Value::Object(one)) {
            let message = format!("`{key}`: {error}");
            return Err(ConfigError::Parse { origin: origin.to_owned(), message });
        }
    }
    let config: Config = serde_json::from_value(Value::Object(layers))
        .map_err(|error| ConfigError::Parse { origin: origin.to_owned(), message: error.to_string() })?;
    check(&config)?;
    Ok(config)
}

/// Contradictions and ranges, found before the first sample is read.
fn check(config: &Config) -> Result<(), ConfigError> {
    let invalid = |key, message: &str| Err(ConfigError::Invalid { key, message: message.to_owned() });
    if config.seq_len == Some(0) {
        return invalid("seq_len", "must be at least 1");
    }
    if config.max_samples == 0 {
        return invalid("max_samples", "must be at least 1");
    }
    if config.max_images == Some(0) {
        return invalid("max_images", "must be at least 1; leave it out for no limit");
    }
    if config.pad_to_multiple == 0 || config.seq_len.is_some_and(|seq_len| config.pad_to_multiple > seq_len) {
        return invalid("pad_to_multiple", "must be between 1 and `seq_len`");
    }
    if config.window == 0 && config.scope == Scope::Window {
        return invalid("window", "must be at least 1 with `scope: window`");
    }
    if config.duplicate_id == DuplicateId::Reject && config.scope != Scope::Global {
        return invalid(
            "duplicate_id",
            "`reject` needs `scope: global`: a window or a node knows nothing of the others",
        );
    }
    if !(1..=10_000).contains(&config.nodes) {
        return invalid("nodes", "must be between 1 and 10,000");
    }
    if config.system == SystemTurns::Keep && config.sample_class != SampleClass::Crude {
        return invalid(
            "system",
            "`keep` needs `sample_class: crude`; PackedCaptioningSample has no field for a system prompt, write `drop` or `reject`",
        );
    }
    if !(0.0..=1.0).contains(&config.max_reject_rate) {
        return invalid("max_reject_rate", "must be between 0 and 1");
    }
    if !(0.0..1.0).contains(&config.val_fraction) {
        return invalid("val_fraction", "must be at least 0 and below 1");
    }
    let prefix = &config.shard_prefix;
    let name_character = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if prefix.is_empty() || prefix.len() > 48 || !prefix.chars().all(name_character) {
        return invalid("shard_prefix", "must be 1 to 48 of A–Z, a–z, 0–9, `_` and `-`");
    }
    if prefix.starts_with("__") {
        return invalid("shard_prefix", "must not start with `__`: WebDataset readers skip such names");
    }
    let module = config.sample_module.split('.').chain([config.sample_class_name.as_str()]);
    if let Some(part) = module.into_iter().find(|part| !is_python_name(part)) {
        let message = format!("{part:?} is not a name that Python can import");
        return invalid("sample_module", &message);
    }
    if config.max_samples_per_shard == 0 || config.max_shard_size.0 == 0 || config.shards_multiple == 0 {
        return invalid("max_samples_per_shard", "shard limits and `shards_multiple` must be at least 1");
    }
    if config.max_line_bytes.0 == 0 {
        return invalid("max_line_bytes", "must be at least 1");
    }
    if config.threads.is_some_and(|threads| !(1..=4096).contains(&threads)) {
        return invalid("threads", "must be between 1 and 4096; leave it out for all cores");
    }
    Ok(())
}

/// Python takes more letters than ASCII; a module that uses them is not known to exist.
fn is_python_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && characters.all(|other| other.is_alphanumeric() || other == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(arguments: &[&str]) -> ArgMatches {
        Config::augment_args(clap::Command::new("packd")).get_matches_from(arguments)
    }

    #[test]
    fn the_example_holds_the_defaults() {
        let example = Config::from_yaml(EXAMPLE, "example.yaml").unwrap();
        let expected = Config {
            input: vec!["data.jsonl".into()],
            seq_len: Some(8192),
            output: Some("out".into()),
            ..Config::default()
        };
        assert_eq!(example, expected);
        for key in Config::defaults().keys() {
            assert!(EXAMPLE.contains(&format!("{key}:")), "example.yaml does not show `{key}`");
        }
    }

    #[test]
    fn flags_win_over_environment_over_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("packd.yaml");
        std::fs::write(&file, "seq_len: 1\nseed: 1\nmax_samples: 1\nscope: window\n").unwrap();
        let environment = [("PACKD_SEED", "2"), ("PACKD_MAX_SAMPLES", "2"), ("HOME", "/")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let flags = matches(&["packd", "--max-samples", "3", "a.jsonl"]);
        let config = Config::layered(Some(&file), environment.into_iter(), &flags).unwrap();
        assert_eq!((config.seq_len, config.seed, config.max_samples), (Some(1), 2, 3));
        assert_eq!(config.scope, Scope::Window, "a flag's default must not hide the file");
        assert_eq!(config.input, ["a.jsonl"]);
    }

    #[test]
    fn mistakes_are_named_with_what_to_write() {
        let error = |text: &str| Config::from_yaml(text, "packd.yaml").unwrap_err().to_string();
        assert_eq!(
            error("seq_length: 1"),
            "packd.yaml: there is no option `seq_length`, did you mean `seq_len`?"
        );
        assert!(error("overlong: cut").contains("`overlong`"), "{}", error("overlong: cut"));
        assert!(error("overlong: cut").contains("truncate-turns"), "{}", error("overlong: cut"));
        assert!(error("seq_len: many").contains("`seq_len`"));
        assert!(error("max_shard_size: 3 parsecs").contains("GiB"));
        assert!(error("system: keep").contains("crude"));
        assert!(error("shard_prefix: a.b").contains("shard_prefix"));
        let variable = [("PACKD_SEQLEN".to_owned(), "1".to_owned())].into_iter();
        let error = Config::layered(None, variable, &matches(&["packd"])).unwrap_err().to_string();
        assert_eq!(error, "PACKD_SEQLEN: there is no option `seqlen`, did you mean `seq_len`?");
    }

    #[test]
    fn runtime_keys_exist_and_do_not_decide() {
        let keys = Config::defaults();
        assert!(Config::RUNTIME_KEYS.iter().all(|key| keys.contains_key(*key)));
        let other = Config { threads: Some(1), output: Some("b".into()), ..Config::default() };
        assert_eq!(other.deciding(), Config::default().deciding());
    }
}
