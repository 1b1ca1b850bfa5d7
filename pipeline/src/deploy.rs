//! `packd deploy`: a job as a script or manifests for an engine that places and restarts its workers.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior};
use packd_config::Config;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::report::to_yaml;

/// What the engine is told besides the configuration.
#[derive(Debug, Clone)]
pub struct DeployOptions {
    /// Name of the jobs.
    pub name: String,
    /// Cores of each worker.
    pub cpus: u32,
    /// Memory of each worker, as the engine writes it.
    pub memory: String,
}

/// What only Slurm is told.
#[derive(Debug, Clone)]
pub struct SlurmOptions {
    /// The partition; `None`: the cluster's default.
    pub partition: Option<String>,
    /// Longest run of a worker, as Slurm writes it.
    pub time: String,
    /// The packd command on the cluster's machines.
    pub program: String,
}

/// What only Kubernetes is told.
#[derive(Debug, Clone)]
pub struct KubernetesOptions {
    /// The container image.
    pub image: String,
    /// Volumes that hold the inputs and take the output.
    pub mounts: Vec<Mount>,
    /// A secret whose entries become environment variables: keys of an object store.
    pub secret: Option<String>,
    /// A service account that an object store knows.
    pub service_account: Option<String>,
}

/// A persistent volume claim in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The claim's name.
    pub claim: String,
    /// Where its volume appears.
    pub path: String,
    /// Nothing is written there.
    pub read_only: bool,
}

impl std::str::FromStr for Mount {
    type Err = String;

    /// Reads `CLAIM:/PATH` or `CLAIM:/PATH:ro`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (text, read_only) = text.strip_suffix(":ro").map_or((text, false), |text| (text, true));
        match text.split_once(':') {
            Some((claim, path)) if is_name(claim) && path.starts_with('/') => {
                Ok(Self { claim: claim.into(), path: path.into(), read_only })
            }
            _ => Err("write CLAIM:/PATH, or CLAIM:/PATH:ro".into()),
        }
    }
}

#[derive(Serialize)]
struct KubernetesJob {
    name: String,
    indexed: bool,
    args: Vec<String>,
}

const SLURM: &str = include_str!("../../deploy/slurm.sh.jinja");
const KUBERNETES: &str = include_str!("../../deploy/kubernetes.yaml.jinja");

/// A script that submits the workers and the finalizer to Slurm.
///
/// # Errors
/// The configuration lacks what a job needs.
pub fn deploy_slurm(config: &Config, options: &DeployOptions, slurm: &SlurmOptions) -> Result<String, Error> {
    let output = output_of(config)?;
    let file = format!("{}.yaml", options.name);
    let values = json!({
        "name": options.name,
        "nodes": config.nodes,
        "cpus": options.cpus,
        "memory": options.memory,
        "time": slurm.time,
        "partition": slurm.partition,
        "program": quoted(&slurm.program),
        "output": quoted(&output),
        "config": to_yaml(config)?.trim_end(),
        "config_file": quoted(&file),
        "arguments": format!("-c {}", quoted(&file)),
    });
    render(SLURM, values)
}

/// The manifests of an Indexed Job and its finalizer for Kubernetes.
///
/// # Errors
/// The configuration lacks what a job needs.
pub fn deploy_kubernetes(
    config: &Config,
    options: &DeployOptions,
    kubernetes: &KubernetesOptions,
) -> Result<String, Error> {
    let output = output_of(config)?;
    let name = &options.name;
    if !is_name(name) {
        return Err(invalid("name", "must be lowercase letters, digits and `-` for Kubernetes"));
    }
    let args = |args: [&str; 3]| args.map(str::to_owned).to_vec();
    let jobs = [
        KubernetesJob {
            name: name.clone(),
            indexed: true,
            args: args(["work", "-c", "/etc/packd/packd.yaml"]),
        },
        KubernetesJob {
            name: format!("{name}-finalize"),
            indexed: false,
            args: vec!["finalize".into(), output.clone(), "--wait-timeout=3600".into()],
        },
    ];
    let values = json!({
        "name": name,
        "nodes": config.nodes,
        "cpus": options.cpus,
        "memory": options.memory,
        "image": kubernetes.image,
        "mounts": kubernetes.mounts,
        "secret": kubernetes.secret,
        "service_account": kubernetes.service_account,
        "output": output,
        "config": to_yaml(&Config { threads: Some(options.cpus as usize), ..config.clone() })?.trim_end(),
        "jobs": jobs,
    });
    render(KUBERNETES, values)
}

/// A job for an engine must be whole: nobody is there to ask.
fn output_of(config: &Config) -> Result<String, Error> {
    if config.input.is_empty() {
        return Err(Error::NotSet { key: "input", help: "name the JSONL files to pack" });
    }
    if config.seq_len.is_none() {
        return Err(Error::NotSet { key: "seq_len", help: "pass --seq-len TOKENS" });
    }
    match &config.output {
        Some(output) => Ok(output.display().to_string()),
        None => Err(Error::NotSet {
            key: "output",
            help: "pass -o DIR, a folder or a bucket (s3://…) that all workers share",
        }),
    }
}

fn render(template: &str, values: Value) -> Result<String, Error> {
    let failed = |error: minijinja::Error| Error::Internal { stage: "deploy", message: format!("{error:#}") };
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
    let mut environment = Environment::new();
    environment.set_syntax(syntax.map_err(failed)?);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.render_str(template, minijinja::value::Serde(values)).map_err(failed)
}

/// One word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A name as Kubernetes has them (RFC 1123).
fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(inner)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn invalid(key: &'static str, message: &str) -> Error {
    packd_config::ConfigError::Invalid { key, message: message.to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_docker_writes_them() {
        let mount = |claim: &str, path: &str, read_only| {
            Ok(Mount { claim: claim.into(), path: path.into(), read_only })
        };
        assert_eq!("data:/data:ro".parse(), mount("data", "/data", true));
        assert_eq!("out-1:/out".parse(), mount("out-1", "/out", false));
        for wrong in ["data", "data:relative", ":/x", "Data:/x", ""] {
            assert!(wrong.parse::<Mount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_of_a_shell_stay_words() {
        assert_eq!(quoted("/a/b.jsonl"), "/a/b.jsonl");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
