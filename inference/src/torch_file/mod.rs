//! Files of `torch.save`: a reader that runs nothing, and a writer that needs one tensor of memory.
//!
//! A torch file is a zip of stored entries: a pickle (`data.pkl`) that says what there is, and the storages
//! (`data/0`, `data/1`, …) that its tensors are views into. Python reads the pickle by doing what it says, which may
//! be anything. This reader builds plain values instead:
//!
//! * tensors are rebuilt from their storage, offset, shape and strides, each checked against the file;
//! * dicts, lists, numbers and texts are what they are, [`Value`];
//! * every other class or function becomes an opaque [`Object`] that keeps its name, arguments and state;
//! * a file that calls what runs code (`os.system`, `eval`, …) is refused, see [`ReadOptions::refuse_code`].
//!
//! Limits hold the memory that a file can cost to a small multiple of its pickle, however it nests and repeats. Tensors
//! are not read at all until asked for: the file is mapped, and contiguous ones are handed out as they lie in it.
//!
//! candle has a reader of its own (`candle_core::pickle`). It is not used: it copies a value each time the pickle
//! recalls it, so that 100 bytes can fill the memory, drops nested values recursively, knows neither bytes nor numbers
//! of Python 3's protocols (a Megatron file has `BytesIO`, numpy states and enums), and reads unknown storages not at
//! all. The container is read and written by the `zip` crate, which candle brings along.

mod calls;
mod container;
mod dtype;
mod encode;
mod error;
mod machine;
mod megatron;
mod pickle;
mod tensor;
mod value;
mod writer;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use container::Container;
use machine::{Fault, Machine};
use tensor::{Storage, Storages, contiguous, copy_elements};
use value::Values;

pub(crate) use container::Bytes;
pub use dtype::TorchDtype;
pub use encode::{ArgsStyle, PyValue, TensorSpec};
pub use error::{Result, TorchFileError};
pub use megatron::ExtraState;
pub use value::{Global, Node, Object, StorageId, TensorInfo, Value, ValueId};
pub use writer::{TorchFileWriter, to_bytes};

/// Bytes that a tensor may have beyond those of its storage, when it repeats elements.
const EXPANDED_BYTES: usize = 64 << 20;

/// Limits of reading.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Bytes of `data.pkl` at most, and of what its instructions copy. Default 64 MiB: a Megatron file of a thousand
    /// tensors has 200 kB.
    pub pickle_bytes: usize,
    /// Values at most. Default 4 million.
    pub values: usize,
    /// Levels of nesting at most. Default 200.
    pub depth: u32,
    /// Refuse files that call functions which run code, with [`TorchFileError::Code`]. When false such a call becomes
    /// an opaque object like every other; nothing is run either way. Default true.
    pub refuse_code: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { pickle_bytes: 64 << 20, values: 4_000_000, depth: 200, refuse_code: true }
    }
}

/// An open torch file.
pub struct TorchFile {
    path: PathBuf,
    container: Container,
    values: Values,
    storages: Vec<Storage>,
    globals: BTreeSet<String>,
}

impl TorchFile {
    /// Opens a file with the default limits. It is memory-mapped, so it must not be cut while it is open.
    ///
    /// # Errors
    /// Any of [`TorchFileError`] but `Write` and `Unwritable`.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &ReadOptions::default())
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As [`TorchFile::open`].
    pub fn open_with(path: &Path, options: &ReadOptions) -> Result<Self> {
        Self::read(Bytes::map(path)?, path, options)
    }

    /// Reads a file that lies in memory, such as one within another; `name` stands for its path in errors.
    ///
    /// # Errors
    /// As [`TorchFile::open`].
    pub fn from_bytes(bytes: Vec<u8>, name: &Path, options: &ReadOptions) -> Result<Self> {
        Self::read(Bytes::Owned(bytes), name, options)
    }

    fn read(bytes: Bytes, path: &Path, options: &ReadOptions) -> Result<Self> {
        let container = Container::new(bytes, path)?;
        let pickle = container.entry("data.pkl").unwrap_or_default();
        let (values, storages, globals) = {
            let machine = Machine::new(pickle, Storages::new(&container), options);
            let done = machine.run().map_err(|(offset, fault)| match fault {
                Fault::Bad(detail) => TorchFileError::Pickle { path: path.to_owned(), offset, detail },
                Fault::Code(global) => TorchFileError::Code { path: path.to_owned(), offset, global },
            })?;
            (done.values, done.storages.into_list(), done.globals)
        };
        Ok(Self { path: path.to_owned(), container, values, storages, globals })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value that was saved.
    pub fn root(&self) -> Node<'_> {
        Node::root(&self.values)
    }

    /// Every class and function that the pickle names, as `module.name`.
    pub fn globals(&self) -> &BTreeSet<String> {
        &self.globals
    }

    /// The bytes of a tensor in row-major order, little-endian: borrowed from the file when they lie so in it.
    ///
    /// `info` must be of this file.
    ///
    /// # Errors
    /// [`TorchFileError::Tensor`] when the tensor repeats few elements to more than 64 MiB (an expanded tensor).
    pub fn tensor_bytes(&self, info: &TensorInfo) -> Result<Cow<'_, [u8]>> {
        self.check_expanded(info)?;
        Ok(contiguous(self.storage_bytes(info.storage), info))
    }

    /// Appends some of the elements of a tensor, counted in row-major order; the others are not read. `info` must be of
    /// this file and have these elements.
    pub(crate) fn elements(&self, info: &TensorInfo, elements: Range<usize>, out: &mut Vec<u8>) {
        copy_elements(self.storage_bytes(info.storage), info, elements, out);
    }

    /// Refuses a tensor that repeats few elements to more than memory should hold.
    pub(crate) fn check_expanded(&self, info: &TensorInfo) -> Result<()> {
        let storage = self.storage_bytes(info.storage);
        if info.bytes() > storage.len().max(EXPANDED_BYTES) {
            let detail = format!(
                "a tensor of shape {:?} repeats the {} bytes of its storage to {}; save a contiguous copy of it",
                info.shape,
                storage.len(),
                info.bytes()
            );
            return Err(TorchFileError::Tensor { path: self.path.clone(), detail });
        }
        Ok(())
    }

    /// The bytes of a whole storage of this file, little-endian.
    pub fn storage_bytes(&self, id: StorageId) -> &[u8] {
        // Places were checked against the file's length when it was opened.
        self.storages.get(id.0 as usize).map_or(&[], |storage| &self.container.bytes[storage.place.clone()])
    }

    /// The names and values of a model's state: those of `model`; with a virtual pipeline of `model0`, `model1`, …;
    /// or of the whole file when it is a bare state dict. With the name comes the number of the part (0 without a
    /// virtual pipeline). Non-tensors such as `_extra_state` are included.
    pub fn model(&self) -> Vec<(usize, &str, Node<'_>)> {
        let root = self.root();
        let numbered = |part: usize| root.get(&format!("model{part}"));
        let parts: Vec<Node<'_>> = match root.get("model") {
            Some(model) => vec![model],
            None => match (0..).map_while(numbered).collect::<Vec<_>>() {
                parts if parts.is_empty() => vec![root],
                parts => parts,
            },
        };
        let parts = parts.into_iter().enumerate();
        parts
            .flat_map(|(number, part)| {
                part.entries().filter_map(move |(name, value)| Some((number, name.as_str()?, value)))
            })
            .collect()
    }

    /// Names of entries of the zip whose bytes are not those that their CRC-32 was made of. Reads the whole file.
    ///
    /// `torch.serialization.set_crc32_options(False)` writes files with other numbers in their place, so this is no
    /// part of opening a file.
    pub fn damaged_entries(&self) -> Vec<&str> {
        self.container.damaged()
    }
}

impl std::fmt::Debug for TorchFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TorchFile").field("path", &self.path).field("root", &self.root()).finish()
    }
}
