//! A job: a checked configuration with everything opened, ready to run.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use packd_config::{Algorithm, Config};
use packd_contracts::{Counter, CounterOptions};
use packd_sinks::{RESERVED_KEYS, SinkError};
use packd_sources::{ImageStore, ImageStoreOptions, Input, Part, expand, slices};
use packd_stages::bin_pack::Limits;
use packd_stages::{TokenLength, Validator};
use packd_storage::{StoreOptions, Stores, is_url};
use rayon::ThreadPool;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::flow;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::Report;
use crate::state::job_file::JobFile;
use crate::state::node::Node;
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
#[derive(Clone)]
pub struct Job {
    pub(crate) config: Config,
    pub(crate) output: Output,
    pub(crate) limits: Limits,
    pub(crate) tools: Tools,
    pub(crate) previous: Option<Arc<Previous>>,
    pub(crate) unit_bytes: u64,
    /// The node whose part of the job this is.
    pub(crate) node: Node,
    /// Its slice of the input.
    pub(crate) parts: Arc<[Part]>,
    pub(crate) started: Instant,
    file: Arc<JobFile>,
    progress: Arc<Progress>,
    cancel: CancellationToken,
}

/// What reading, judging and counting records needs: shared by a run, `packd lengths` and `packd explain`.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) stores: Arc<Stores>,
    pub(crate) inputs: Arc<[Input]>,
    pub(crate) images: Arc<ImageStore>,
    pub(crate) validator: Arc<Validator>,
    pub(crate) counter: Arc<Counter>,
    pub(crate) pool: Arc<ThreadPool>,
    /// For what opens images: where they lie in an object store, as many threads as requests may be in flight.
    pub(crate) image_pool: Arc<ThreadPool>,
    /// How long the counter took to open, and to load what is loaded later, in seconds.
    open_seconds: f64,
    load_seconds: Arc<OnceLock<f64>>,
}

impl Tools {
    pub(crate) fn new(config: &Config, stores: Arc<Stores>) -> Result<Self, Error> {
        let inputs = expand(&config.input, &stores)?;
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
        let images = Arc::new(ImageStore::new(&options, &folders, &stores)?);
        let started = Instant::now();
        let counter = Arc::new(Counter::new(&counter_options(config)?)?);
        let open_seconds = started.elapsed().as_secs_f64();
        let validator = Arc::new(Validator::new(config, Arc::clone(&counter), Arc::clone(&images)));
        let pool = Arc::new(pool(config.threads)?);
        let image_pool = match images.is_remote() {
            true => Arc::new(self::pool(Some(pool.current_num_threads().max(config.store_concurrency)))?),
            false => Arc::clone(&pool),
        };
        let (inputs, load_seconds) = (inputs.into(), Arc::default());
        Ok(Self { stores, inputs, images, validator, counter, pool, image_pool, open_seconds, load_seconds })
    }

    /// Loads what counting needs and planning does not.
    pub(crate) fn load(&self) -> Result<(), Error> {
        let started = Instant::now();
        self.counter.load().map_err(packd_contracts::CounterError::from)?;
        let _ = self.load_seconds.set(started.elapsed().as_secs_f64());
        Ok(())
    }

    pub(crate) fn load_seconds(&self) -> f64 {
        self.open_seconds + self.load_seconds.get().copied().unwrap_or_default()
    }
}

/// The object stores of a run.
pub(crate) fn stores(config: &Config) -> Result<Arc<Stores>, Error> {
    let options = StoreOptions {
        concurrency: config.store_concurrency,
        retries: config.store_retries,
        timeout: Duration::from_secs(config.io_timeout),
    };
    Stores::new(options).map_err(|error| Error::Internal { stage: "store", message: error.to_string() })
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
        let stores = stores(&config)?;
        Self::with_stores(config, stores)
    }

    /// The same, with stores that the caller opened: [`Stores::insert`] lets URLs mean any
    /// [`ObjectStore`](packd_storage::ObjectStore).
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn with_stores(config: Config, stores: Arc<Stores>) -> Result<Self, Error> {
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
        let output = Output::open(&output, &stores, config.scratch.as_deref())?;
        let tools = Tools::new(&config, stores)?;
        let counter = serde_json::to_value(tools.counter.describe())
            .map_err(|error| Error::Internal { stage: "job", message: error.to_string() })?;
        let slices = match config.nodes {
            1 => vec![(0..tools.inputs.len()).map(Part::whole).collect()],
            nodes => slices(&tools.inputs, nodes as usize)?,
        };
        let file = Arc::new(JobFile::new(config.deciding(), tools.inputs.to_vec(), counter, slices));
        let job = Self {
            config,
            output,
            limits,
            tools,
            previous: None,
            unit_bytes: UNIT_BYTES,
            node: Node(0),
            parts: Arc::new([]),
            started,
            file,
            progress: Arc::new(Progress::default()),
            cancel: CancellationToken::new(),
        };
        Progress::add(&job.progress.input_bytes, job.slices().iter().sum());
        Ok(job.on(Node(0)))
    }

    /// The job that an output folder holds, with what only decides how a run goes taken from `running`.
    ///
    /// # Errors
    /// The folder holds no job; and see [`new`](Self::new).
    pub fn open(output: &Path, running: &Config) -> Result<Self, Error> {
        let stores = stores(running)?;
        let opened = Output::open(output, &stores, running.scratch.as_deref())?;
        let Some(JobFile { config, planned_in, inputs, .. }) = JobFile::find(&opened)? else {
            return Err(Error::NotPlanned { path: output.to_owned() });
        };
        let path = opened.shown(JobFile::NAME);
        let here = std::env::current_dir().unwrap_or_default();
        let relative = |input: &Input| input.path().is_relative() && !is_url(&input.name);
        if here != planned_in && inputs.iter().any(relative) {
            return Err(Error::OtherFolder { planned_in, here });
        }
        let config: Config = serde_json::from_value(config.into())
            .map_err(|error| Error::State { path, message: error.to_string() })?;
        let config = Config {
            output: Some(output.to_owned()),
            wait_timeout: running.wait_timeout,
            grace: running.grace,
            threads: running.threads,
            read_budget: running.read_budget,
            verify_resume: running.verify_resume,
            scratch: running.scratch.clone(),
            store_concurrency: running.store_concurrency,
            store_retries: running.store_retries,
            io_timeout: running.io_timeout,
            ..config
        };
        Self::with_stores(config, stores)
    }

    /// The part of the job that one node does: [`work`](Self::work) then works on that.
    ///
    /// # Errors
    /// There is no such node.
    pub fn with_node(self, node: u32) -> Result<Self, Error> {
        if node >= self.config.nodes {
            return Err(Error::NoSuchNode { node, nodes: self.config.nodes });
        }
        let progress = Progress::default();
        Progress::add(&progress.input_bytes, self.slices()[node as usize]);
        Ok(Self { progress: Arc::new(progress), ..self.on(Node(node)) })
    }

    /// The same job as another node sees it.
    pub(crate) fn on(self, node: Node) -> Self {
        let parts = self.file.slices.get(node.0 as usize).cloned().unwrap_or_default().into();
        Self { node, parts, ..self }
    }

    /// Bytes of input that each node measures.
    pub fn slices(&self) -> Vec<u64> {
        let bytes =
            |part: &Part| part.end.unwrap_or(self.tools.inputs[part.source].size).saturating_sub(part.offset);
        self.file.slices.iter().map(|slice| slice.iter().map(bytes).sum()).collect()
    }

    /// Reuses what an earlier run measured of records that did not change.
    ///
    /// # Errors
    /// The folder holds no run, or one that measured by other rules.
    pub fn with_previous(mut self, folder: &Path) -> Result<Self, Error> {
        let previous = Previous::read(folder, &self.file)?;
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

    /// Runs the job to its end, or continues it where an earlier run stopped. With several nodes all of
    /// them run in this process, each with a part of the memory and all on the same threads.
    ///
    /// # Errors
    /// See [`Error`]. What was finished before the error stays and is not done again.
    pub async fn run(self) -> Result<Report, Error> {
        flow::run(self).await
    }

    /// Claims the output folder for this job, so that it can be continued from there
    /// ([`open`](Self::open)).
    ///
    /// # Errors
    /// The folder holds something else.
    pub fn plan(&self) -> Result<(), Error> {
        self.file.claim(&self.output)
    }

    /// Does the part of one node, and then what the whole job needs, if this node was the last one.
    /// `None`: other nodes are still at work.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Waiting`] when another node did not measure its slice in time.
    pub async fn work(self) -> Result<Option<Report>, Error> {
        flow::work(Arc::new(self)).await
    }

    /// Writes what needs all nodes: tables, the top-level dataset.yaml, checksums, the report. Doing it again
    /// writes the same bytes.
    ///
    /// # Errors
    /// [`Error::Waiting`] names the nodes that have not finished within `wait_timeout`.
    pub async fn finalize(self) -> Result<Report, Error> {
        flow::finish(Arc::new(self)).await
    }

    /// The output as it was configured: a folder or a URL.
    pub fn output(&self) -> &Path {
        self.output.name()
    }

    /// The line of a record in its input. A node counts from the start of the part that it measures; what
    /// stands before that is read only when a message needs it.
    pub(crate) fn line_of(&self, source: usize, offset: u64, line: u64) -> u64 {
        let holds = |part: &&Part| {
            part.source == source && part.offset <= offset && part.end.is_none_or(|end| offset < end)
        };
        let part = self.file.slices.iter().flatten().find(holds);
        let before = part.map_or(Ok(0), |part| self.tools.inputs[source].lines_before(part.offset));
        line + before.unwrap_or(0)
    }

    pub(crate) fn file(&self) -> &JobFile {
        &self.file
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        Node::all(self.config.nodes)
    }

    /// What the keys and shards of this node start with: with a packing of its own it has names of its own.
    pub(crate) fn prefix(&self) -> String {
        let prefix = &self.config.shard_prefix;
        let own = self.config.nodes > 1 && self.config.scope != packd_config::Scope::Global;
        if own { format!("{prefix}_n{}", self.node.0) } else { prefix.clone() }
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
