//! The one typed configuration of packd.
//!
//! Every option has one name: `seq_len` in the file, `--seq-len` on the command line, `PACKD_SEQ_LEN` in
//! the environment. Flags win over the environment, the environment over the file, the file over the
//! defaults. Unknown keys are errors that suggest the nearest known one.
//!
//! ```
//! use packd_config::Config;
//! let config = Config::from_yaml("input: [data.jsonl]\nseq_len: 8192\n", "packd.yaml")?;
//! assert_eq!(config.seq_len, Some(8192));
//! assert!(Config::from_yaml("seq_lenght: 8192\n", "packd.yaml").unwrap_err().to_string().contains("seq_len"));
//! # Ok::<(), packd_config::ConfigError>(())
//! ```

#![deny(missing_docs)]

mod byte_size;
mod choices;
mod config;
mod load;

pub use byte_size::ByteSize;
pub use choices::{
    Algorithm, DuplicateId, ImageChanged, Metadataset, Overlong, PlaceholderMismatch, SampleClass, Scope,
    SpecialTokens, SystemTurns, VerifyImages, Weight,
};
pub use config::Config;
pub use load::{ConfigError, EXAMPLE};
