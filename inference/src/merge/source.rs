//! The tensors of one part: found when it is opened, read one at a time.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::DType;
use serde::Serialize;
use serde_json::Value as Json;

use super::file::SafetensorsFile;
use crate::error::{ModelError, Result};
use crate::torch_file::{Node, TensorInfo, TorchDtype, TorchFile, Value};

const INDEX: &str = "model.safetensors.index.json";

/// What a source is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Role {
    /// The vision tower.
    #[serde(rename = "ViT")]
    Vit,
    /// The merger between them.
    Adapter,
    /// The decoder.
    #[serde(rename = "LLM")]
    Llm,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vit => "ViT",
            Self::Adapter => "Adapter",
            Self::Llm => "LLM",
        })
    }
}

/// Where a tensor lies.
enum Place {
    /// From this byte of a safetensors file.
    From(u64),
    Torch(TensorInfo),
    /// It is no tensor.
    Nowhere,
}

/// A tensor of a source.
pub(super) struct SourceTensor {
    file: usize,
    /// What it is instead, when its elements are no floating point numbers of at least 16 bits.
    pub(super) dtype: std::result::Result<DType, String>,
    pub(super) shape: Vec<usize>,
    place: Place,
}

enum File {
    Safetensors(SafetensorsFile),
    Torch(TorchFile),
}

/// An open part.
pub(super) struct Source {
    pub(super) role: Role,
    files: Vec<File>,
    pub(super) tensors: BTreeMap<String, SourceTensor>,
    /// What a reader of the report may want to know.
    pub(super) notes: Vec<String>,
}

impl Source {
    /// A folder of safetensors, one such file, or a file of `torch.save`.
    pub(super) fn open(role: Role, path: &Path) -> Result<Self> {
        let mut source = Self { role, files: Vec::new(), tensors: BTreeMap::new(), notes: Vec::new() };
        if is_here(path)?.is_dir() {
            source.add_folder(path)?;
        } else if path.extension().is_some_and(|extension| extension == "safetensors") {
            source.add_safetensors(path)?;
        } else {
            source.add_torch(path)?;
        }
        if source.tensors.is_empty() {
            return Err(wrong(path, "it holds no tensors"));
        }
        Ok(source)
    }

    fn add_folder(&mut self, folder: &Path) -> Result<()> {
        let index = folder.join(INDEX);
        if index.is_file() {
            return self.add_index(folder, &index);
        }
        let read = |source| ModelError::Read { path: folder.to_owned(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(read)? {
            let path = entry.map_err(read)?.path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            let help = "no *.safetensors in this folder; a file of torch.save is given by its own path";
            return Err(wrong(folder, help));
        }
        paths.iter().try_for_each(|path| self.add_safetensors(path))
    }

    /// The files that an index names; of tensors that lie in two of them, the one that it means.
    fn add_index(&mut self, folder: &Path, index: &Path) -> Result<()> {
        let json = read_json(index)?;
        let Some(map) = json["weight_map"].as_object() else {
            return Err(wrong(index, "it has no weight_map"));
        };
        let mut names: Vec<&str> = map.values().filter_map(Json::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let mut tensors = BTreeMap::new();
        for &name in &names {
            self.add_safetensors(&folder.join(name))?;
            for (key, tensor) in std::mem::take(&mut self.tensors) {
                if map.get(&key).is_none_or(|file| file == name) {
                    tensors.insert(key, tensor);
                }
            }
        }
        if let Some((key, file)) = map.iter().find(|(key, _)| !tensors.contains_key(*key)) {
            let file = file.as_str().unwrap_or("no file");
            return Err(wrong(index, &format!("it says that {key} lies in {file}, which does not hold it")));
        }
        self.tensors = tensors;
        Ok(())
    }

    fn add_safetensors(&mut self, path: &Path) -> Result<()> {
        let file = self.files.len();
        let (opened, tensors) = SafetensorsFile::open(path)?;
        for (key, found) in tensors {
            let tensor = SourceTensor {
                file,
                dtype: found.dtype,
                shape: found.shape,
                place: Place::From(found.start),
            };
            if self.tensors.insert(key.clone(), tensor).is_some() {
                self.notes.push(format!(
                    "[{}] {key} lies in several files, {} counts",
                    self.role,
                    path.display()
                ));
            }
        }
        self.files.push(File::Safetensors(opened));
        Ok(())
    }

    fn add_torch(&mut self, path: &Path) -> Result<()> {
        let torch = TorchFile::open(path)?;
        let root = torch.root();
        let state = root.get("state_dict").unwrap_or(root);
        if !matches!(state.value(), Value::Dict(_)) {
            return Err(wrong(
                path,
                &format!("it holds a {}, not a dict of tensors or one under state_dict", state.class()),
            ));
        }
        for (key, node) in state.entries() {
            if let Some(key) = key.as_str() {
                self.tensors.insert(key.to_owned(), torch_tensor(self.files.len(), node));
            }
        }
        // One that repeats few elements very often is no weight. Nothing may fail once writing has begun.
        for tensor in self.tensors.values() {
            if let Place::Torch(info) = &tensor.place {
                torch.check_expanded(info)?;
            }
        }
        self.files.push(File::Torch(torch));
        Ok(())
    }

    /// The way to the bytes of one of the tensors; none for what is no tensor.
    pub(super) fn reader<'a>(&'a self, tensor: &'a SourceTensor) -> Option<Reader<'a>> {
        match (&tensor.place, self.files.get(tensor.file)) {
            (Place::From(start), Some(File::Safetensors(file))) => Some(Reader::File(file, *start)),
            (Place::Torch(info), Some(File::Torch(file))) => Some(Reader::Torch(file, info)),
            _ => None,
        }
    }
}

/// The bytes of a tensor in row-major order, little-endian.
pub(super) enum Reader<'a> {
    File(&'a SafetensorsFile, u64),
    Torch(&'a TorchFile, &'a TensorInfo),
}

impl Reader<'_> {
    /// Fills `buffer` with the tensor's bytes from `start`: whole elements, which must be within it.
    pub(super) fn read(&self, start: usize, buffer: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::File(file, first) => file.read(first + start as u64, buffer),
            Self::Torch(file, info) => {
                let size = info.dtype.size();
                let elements = start / size..(start + buffer.len()) / size;
                buffer.clear();
                file.elements(info, elements, buffer);
                Ok(())
            }
        }
    }
}

fn torch_tensor(file: usize, node: Node<'_>) -> SourceTensor {
    let Some(info) = node.as_tensor() else {
        let dtype = Err(format!("a {}, no tensor", node.class()));
        return SourceTensor { file, dtype, shape: Vec::new(), place: Place::Nowhere };
    };
    let dtype = match info.dtype {
        TorchDtype::Double => Ok(DType::F64),
        TorchDtype::Float => Ok(DType::F32),
        TorchDtype::Half => Ok(DType::F16),
        TorchDtype::BFloat16 => Ok(DType::BF16),
        other => Err(other.to_string()),
    };
    SourceTensor { file, dtype, shape: info.shape.clone(), place: Place::Torch(info.clone()) }
}

/// What lies at a path that a user gave, with help for those who gave the name of a repository.
pub(super) fn is_here(path: &Path) -> Result<std::fs::Metadata> {
    std::fs::metadata(path).map_err(|source| {
        let text = path.display().to_string();
        let parts: Vec<&str> = text.split('/').collect();
        if source.kind() == std::io::ErrorKind::NotFound && parts.len() == 2 && !parts[0].starts_with('.') {
            let help = format!(
                "nothing is here; if this is a repository of the Hugging Face Hub, download it first (hf download \
                 {text} --local-dir {}) and give the folder",
                parts[1]
            );
            return wrong(path, &help);
        }
        ModelError::Read { path: path.to_owned(), source }
    })
}

pub(super) fn wrong(path: &Path, detail: &str) -> ModelError {
    ModelError::Checkpoint { path: path.to_owned(), detail: detail.to_owned() }
}

pub(super) fn read_json(path: &Path) -> Result<Json> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ModelError::Read { path: PathBuf::from(path), source })?;
    serde_json::from_str(&text)
        .map_err(|error| ModelError::Config { name: path.display().to_string(), detail: error.to_string() })
}
