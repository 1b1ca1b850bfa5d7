//! Why a run ended without being done.

use std::path::PathBuf;

use packd_config::ConfigError;
use packd_contracts::{CounterError, Verdict};
use packd_sinks::SinkError;
use packd_sources::SourceError;
use packd_stages::bin_pack::PackError;
use packd_storage::StorageError;

/// A run that could not be done. What a person can do about it is in [`Error::help`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A value that a run needs is not set.
    #[error("`{key}` is not set")]
    NotSet {
        /// The option.
        key: &'static str,
        /// What to write.
        help: &'static str,
    },
    /// No counter can be made of the model and the profile.
    #[error(transparent)]
    Counter(#[from] CounterError),
    /// An input cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An output cannot be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// An object store did not do what it was asked to.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The disk is full.
    #[error("{source}; about {} more are needed there to finish, {} are free", size(*needed), size(*free))]
    DiskFull {
        /// What could not be written.
        source: Box<Error>,
        /// Bytes that the output still needs, as far as that is known.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The packer refused its limits.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The output folder holds another job.
    #[error("{path} holds the output of another job: {what}")]
    OtherJob {
        /// The output folder.
        path: PathBuf,
        /// What differs, by name.
        what: String,
    },
    /// The output folder holds something that packd did not write.
    #[error("{path} exists and is no output of packd")]
    NotAnOutput {
        /// The output folder.
        path: PathBuf,
    },
    /// Another process works on the output folder.
    #[error("another packd works on {path}")]
    Busy {
        /// The output folder.
        path: PathBuf,
    },
    /// A file of the run's own state cannot be used.
    #[error("cannot use {path}: {message}")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A folder that holds no packed data set, or not what was asked for.
    #[error("{path}: {message}")]
    DataSet {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        message: String,
        /// What to do.
        help: &'static str,
    },
    /// `fail_fast`, or `overlong: error`.
    #[error("{input}:{line}: {verdict}")]
    Stopped {
        /// The input as configured.
        input: String,
        /// The record's line.
        line: u64,
        /// Why it is rejected.
        verdict: Verdict,
    },
    /// A record is not what it was when it was measured.
    #[error("{input}:{line}: {message}")]
    RecordChanged {
        /// The input as configured.
        input: String,
        /// The record's line.
        line: u64,
        /// What differs.
        message: String,
    },
    /// Nothing was accepted, and Energon refuses an empty set.
    #[error("{}", nothing_accepted(*read, rejects))]
    NothingAccepted {
        /// Records read.
        read: u64,
        /// The rejects file.
        rejects: PathBuf,
    },
    /// No job was planned in the output folder yet.
    #[error("no job is planned in {path}")]
    NotPlanned {
        /// The output folder.
        path: PathBuf,
    },
    /// A job with relative paths is continued from another folder.
    #[error("the inputs are named relative to {planned_in}, where the job was planned; this is {here}")]
    OtherFolder {
        /// Where the job was planned.
        planned_in: PathBuf,
        /// The current folder.
        here: PathBuf,
    },
    /// A node that the job does not have.
    #[error("there is no node {node}: the job has {nodes}, counted from 0")]
    NoSuchNode {
        /// The node.
        node: u32,
        /// How many there are.
        nodes: u32,
    },
    /// Other nodes have not finished what this one needs.
    #[error("{}", waiting(.nodes, phase))]
    Waiting {
        /// Those nodes.
        nodes: Vec<u32>,
        /// What they have not finished: `measured` or `written`.
        phase: &'static str,
    },
    /// The run was cancelled.
    #[error("interrupted; what is finished is kept")]
    Interrupted,
    /// A stage ended by a panic: a fault of packd.
    #[error("internal error in {stage}: {message}")]
    Internal {
        /// The stage.
        stage: &'static str,
        /// The panic's message.
        message: String,
    },
}

/// Exit codes, as `sysexits.h` names them.
pub mod exit {
    /// Everything was done.
    pub const OK: u8 = 0;
    /// `verify` found faults.
    pub const FAULTS: u8 = 1;
    /// The command line is wrong.
    pub const USAGE: u8 = 64;
    /// More rejects than `max_reject_rate`.
    pub const DATA: u8 = 65;
    /// An input does not exist.
    pub const NO_INPUT: u8 = 66;
    /// A fault of packd.
    pub const INTERNAL: u8 = 70;
    /// The output cannot be created.
    pub const CANNOT_CREATE: u8 = 73;
    /// Reading or writing failed.
    pub const IO: u8 = 74;
    /// Interrupted; run again to continue.
    pub const TEMPORARY: u8 = 75;
    /// The configuration cannot be used.
    pub const CONFIG: u8 = 78;
}

fn nothing_accepted(read: u64, rejects: &std::path::Path) -> String {
    match read {
        0 => "the inputs hold no records".to_owned(),
        _ => format!("none of {read} records was accepted; {} names the reason of each", rejects.display()),
    }
}

fn waiting(nodes: &[u32], phase: &str) -> String {
    const NAMED: usize = 10;
    let named: Vec<String> = nodes.iter().take(NAMED).map(u32::to_string).collect();
    let more = if nodes.len() > NAMED { format!(" and {} more", nodes.len() - NAMED) } else { String::new() };
    format!("node {}{more} has not {phase} its part yet", named.join(", "))
}

/// Bytes as people say them.
fn size(bytes: u64) -> String {
    if bytes < 1_000_000_000 {
        format!("{:.1} MB", bytes as f64 / 1e6)
    } else {
        format!("{:.1} GB", bytes as f64 / 1e9)
    }
}

fn storage_help(error: &StorageError) -> Option<&'static str> {
    match error {
        StorageError::Connect { .. } => Some(
            "set what the store needs, as its own tools have it: AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL …; \
             GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME …",
        ),
        StorageError::Denied { .. } => Some(
            "look at the credentials and their rights; some stores say this of a missing object too, where listing \
             is not allowed",
        ),
        StorageError::Refused { .. } => {
            Some("look at the URL, the region and AWS_ENDPOINT_URL; https servers must answer range requests")
        }
        StorageError::Failed { .. } => Some(
            "run the same command again when the store answers: what is finished is kept. If it never did, look at the \
             credentials and AWS_ENDPOINT_URL",
        ),
        StorageError::Missing { .. } => Some("check the URL and AWS_ENDPOINT_URL; does the bucket exist?"),
        _ => None,
    }
}

fn is_no_file(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::IsADirectory)
}

impl Error {
    /// The exit status that tells an engine what to do (see [`exit`]).
    pub fn exit_code(&self) -> u8 {
        if let Some(error) = self.storage() {
            return match error {
                StorageError::Url { .. } | StorageError::Connect { .. } | StorageError::Refused { .. } => {
                    exit::CONFIG
                }
                StorageError::Missing { .. } => exit::NO_INPUT,
                StorageError::Failed { .. } => exit::TEMPORARY,
                _ => exit::IO,
            };
        }
        match self {
            Self::Config(_) | Self::NotSet { .. } | Self::Counter(_) | Self::Pack(_) => exit::CONFIG,
            Self::Source(SourceError::Missing { .. }) | Self::DataSet { .. } => exit::NO_INPUT,
            Self::Source(SourceError::Repeated { .. } | SourceError::Pattern { .. }) => exit::CONFIG,
            Self::Source(SourceError::Io { source, .. }) if is_no_file(source) => exit::NO_INPUT,
            Self::Sink(SinkError::ReservedKey { .. }) => exit::CONFIG,
            Self::DiskFull { .. } => exit::IO,
            Self::Sink(error) if error.is_cannot_create() => exit::CANNOT_CREATE,
            Self::Source(_)
            | Self::Sink(_)
            | Self::Storage(_)
            | Self::State { .. }
            | Self::RecordChanged { .. } => exit::IO,
            Self::OtherJob { .. } | Self::NotAnOutput { .. } => exit::CANNOT_CREATE,
            Self::Stopped { .. } | Self::NothingAccepted { .. } => exit::DATA,
            Self::NoSuchNode { .. } | Self::OtherFolder { .. } => exit::CONFIG,
            Self::NotPlanned { .. } | Self::Interrupted | Self::Busy { .. } | Self::Waiting { .. } => {
                exit::TEMPORARY
            }
            Self::Internal { .. } => exit::INTERNAL,
        }
    }

    /// What an object store said, wherever it was met.
    fn storage(&self) -> Option<&StorageError> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref::<StorageError>() {
                return Some(found);
            }
            let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            if let Some(found) = inner.and_then(|inner| inner.downcast_ref::<StorageError>()) {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// By their words: SQLite has its own error for it, and some causes are kept as text only.
    pub(crate) fn is_full_disk(&self) -> bool {
        let mut cause: Option<&dyn std::error::Error> = Some(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if text.contains("No space left on device") || text.contains("disk is full") {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// What to do about it, if packd knows.
    pub fn help(&self) -> Option<String> {
        if self.is_full_disk() {
            let text = "free space there, then run the same command again: what is finished is kept";
            return Some(text.to_owned());
        }
        if let Some(error) = self.storage() {
            return storage_help(error).map(str::to_owned);
        }
        let text = match self {
            Self::NotSet { help, .. } | Self::DataSet { help, .. } => help,
            Self::OtherJob { .. } => {
                "write to a new folder with --output, or move this one aside with --force"
            }
            Self::NotAnOutput { .. } => "name a folder that does not exist or is empty",
            Self::Busy { .. } => "wait for it, or stop it, then run again",
            Self::State { .. } => {
                "free space or mend the rights if the system refused; if the file was damaged, write to a new \
                 folder with --output"
            }
            Self::Stopped { .. } => {
                "mend the record, or let it go to the rejects (no --fail-fast, --overlong reject)"
            }
            Self::RecordChanged { .. } | Self::Source(SourceError::Changed { .. }) => {
                "run again into a new folder when nothing writes to the inputs"
            }
            Self::NothingAccepted { read: 0, .. } => "look whether the inputs are the right files",
            Self::NothingAccepted { .. } => {
                "look at the reasons; `packd explain` shows the arithmetic of one record"
            }
            Self::Source(SourceError::Missing { .. }) => {
                "check the path; quote globs so that the shell leaves them alone"
            }
            Self::Source(SourceError::Repeated { .. }) => "name each file once",
            Self::NotPlanned { .. } => "run `packd plan` first, or name the inputs here as well",
            Self::OtherFolder { .. } => "start it there, or plan the job with absolute paths",
            Self::NoSuchNode { .. } => "count from 0, or plan the job with more --nodes in a new folder",
            Self::Waiting { .. } => {
                "start those nodes, then run this again; `packd status` shows each of them"
            }
            Self::Interrupted => "run the same command again to continue",
            Self::Internal { .. } => "please report this with the command and the run folder",
            _ => return None,
        };
        Some(text.to_owned())
    }
}
