//! A job: a checked configuration with everything opened, ready to run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use packd_config::{Algorithm, Config};
use packd_contracts::{Counter, CounterOptions};
use packd_sinks::{RESERVED_KEYS, SinkError};
use packd_sources::{ImageStore, ImageStoreOptions, Input, expand};
use packd_stages::bin_pack::Limits;
use packd_stages::{TokenLength, Validator};
use rayon::ThreadPool;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::flow;
use crate::progress::Progress;
use crate::report::Report;
use crate::state::job_file::JobFile;
use crate::state::previous::Previous;

/// Input bytes of one unit: what a crash while measuring may cost.
const UNIT_BYTES: u64 = 64 << 20;

/// A job that is ready to run. Everything that can be wrong with the configuration was found when it
/// was built.
///
/// ```no_run
/// # async fn example() -> Result<(), packd::Error> {
/// let config = packd::Config { input: vec!["data.jsonl".into()], seq_len: Some(8192), output: Some("out".into()), ..Default::default() };
/// let report = packd::Job::new(config)?.run().await?;
/// println!("{} packs, {:.2} % full", report.packing.bins, 100.0 * report.packing.fill);
/// # Ok(()) }
/// ```
pub struct Job {
    pub(crate) config: Config,
    pub(crate) output: PathBuf,
    pub(crate) limits: Limits,
    pub(crate) tools: Tools,
    pub(crate) previous: Option<Arc<Previous>>,
    pub(crate) unit_bytes: u64,
    pub(crate) started: Instant,
    progress: Arc<Progress>,
    cancel: CancellationToken,
}

/// What reading, judging and counting records needs: shared by a run, `packd lengths` and `packd explain`.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) inputs: Arc<[Input]>,
    pub(crate) images: Arc<ImageStore>,
    pub(crate) validator: Arc<Validator>,
    pub(crate) counter: Arc<Counter>,
    pub(crate) pool: Arc<ThreadPool>,
    /// How long the tokenizer took to load, in seconds.
    pub(crate) load_seconds: f64,
}

impl Tools {
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        let inputs = expand(&config.input)?;
        if inputs.len() > usize::from(u16::MAX) {
            let help = "join them: at most 65,535 input files are supported";
            return Err(Error::NotSet { key: "input", help });
        }
        let folders: Vec<PathBuf> = inputs.iter().map(Input::folder).collect();
        let options = ImageStoreOptions {
            image_root: config.image_root.clone(),
            allow_root: config.allow_root.clone(),
            follow_symlinks: config.follow_symlinks,
        };
        let images = Arc::new(ImageStore::new(&options, &folders)?);
        let started = Instant::now();
        let counter = Arc::new(Counter::new(&counter_options(config)?)?);
        let load_seconds = started.elapsed().as_secs_f64();
        let validator = Arc::new(Validator::new(config, Arc::clone(&counter), Arc::clone(&images)));
        Ok(Self {
            inputs: inputs.into(),
            images,
            validator,
            counter,
            pool: Arc::new(pool(config.threads)?),
            load_seconds,
        })
    }
}

/// The options of the counter that a configuration names.
pub(crate) fn counter_options(config: &Config) -> Result<CounterOptions, Error> {
    let template_date = config.template_date.as_deref().map(str::parse).transpose().map_err(|error| {
        packd_config::ConfigError::Invalid {
            key: "template_date",
            message: format!("{error}; write YYYY-MM-DD"),
        }
    })?;
    Ok(CounterOptions {
        profile: config.profile.clone(),
        model: config.model.clone(),
        min_pixels: config.min_pixels,
        max_pixels: config.max_pixels,
        override_processor: config.override_processor,
        first_resize: config.first_resize,
        template_date,
    })
}

/// Threads for CPU work, as many as there are cores by default.
pub(crate) fn pool(threads: Option<usize>) -> Result<ThreadPool, Error> {
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|n| format!("packd-cpu-{n}"))
        .build();
    pool.map_err(|error| Error::Internal { stage: "thread pool", message: error.to_string() })
}

impl Job {
    /// Checks a configuration and opens what it names.
    ///
    /// # Errors
    /// Whatever would make the run fail later and can be known now.
    pub fn new(config: Config) -> Result<Self, Error> {
        let started = Instant::now();
        if config.input.is_empty() {
            return Err(Error::NotSet { key: "input", help: "name the JSONL files to pack" });
        }
        let help = "pass --seq-len TOKENS, the trainer's --seq-length; `packd lengths INPUT` shows what each choice gives";
        let seq_len = config.seq_len.ok_or(Error::NotSet { key: "seq_len", help })?;
        let output = config.output.clone().ok_or(Error::NotSet { key: "output", help: "pass -o DIR" })?;
        let limits = Limits {
            seq_len,
            max_samples: config.max_samples,
            max_images: config.max_images,
            max_patches: config.max_patches,
            pad_to_multiple: config.pad_to_multiple,
        };
        limits.validate()?;
        if let Some(key) = config.passthrough.iter().find(|key| RESERVED_KEYS.contains(&key.as_str())) {
            return Err(SinkError::ReservedKey { key: key.clone() }.into());
        }
        let tools = Tools::new(&config)?;
        let progress = Arc::new(Progress::default());
        Progress::add(&progress.input_bytes, tools.inputs.iter().map(|input| input.size).sum());
        Ok(Self {
            config,
            output,
            limits,
            tools,
            previous: None,
            unit_bytes: UNIT_BYTES,
            started,
            progress,
            cancel: CancellationToken::new(),
        })
    }

    /// Reuses what an earlier run measured of records that did not change.
    ///
    /// # Errors
    /// The folder holds no run, or one that measured by other rules.
    pub fn with_previous(mut self, folder: &Path) -> Result<Self, Error> {
        let previous = Previous::read(folder, &self.job_file()?)?;
        tracing::info!(records = previous.len(), "reusing the measurements of {}", folder.display());
        self.previous = Some(Arc::new(previous));
        Ok(self)
    }

    /// Commits measurements every so many bytes of input. Smaller units cost files, larger ones lose
    /// more in a crash; no byte of the output depends on it.
    #[must_use]
    pub fn with_unit_bytes(mut self, bytes: u64) -> Self {
        self.unit_bytes = bytes.max(1);
        self
    }

    /// Counters to watch the run by.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Cancelling this token ends the run with [`Error::Interrupted`]; what is finished is kept.
    pub fn cancellation(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Runs the job to its end, or continues it where an earlier run stopped.
    ///
    /// # Errors
    /// See [`Error`]. What was finished before the error stays and is not done again.
    pub async fn run(self) -> Result<Report, Error> {
        flow::run(Arc::new(self)).await
    }

    pub(crate) fn job_file(&self) -> Result<JobFile, Error> {
        let counter = serde_json::to_value(self.tools.counter.describe())
            .map_err(|error| Error::Internal { stage: "job", message: error.to_string() })?;
        Ok(JobFile::new(self.config.deciding(), self.tools.inputs.to_vec(), counter))
    }

    pub(crate) fn algorithm(&self) -> packd_stages::bin_pack::Algorithm {
        match self.config.algorithm {
            Algorithm::BestFitDecreasing => packd_stages::bin_pack::Algorithm::BestFitDecreasing,
            Algorithm::FirstFitDecreasing => packd_stages::bin_pack::Algorithm::FirstFitDecreasing,
        }
    }

    pub(crate) fn token_length(&self) -> TokenLength {
        TokenLength::new(&self.config, Arc::clone(&self.tools.counter), Some(self.limits))
    }

    pub(crate) fn counters(&self) -> &Progress {
        &self.progress
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}
