//! Python values to be saved, and their pickle.

use std::collections::HashMap;

use super::dtype::TorchDtype;

/// A Python value to be saved.
#[derive(Clone, Debug, PartialEq)]
pub enum PyValue {
    /// `None`
    None,
    /// `True`, `False`
    Bool(bool),
    /// An `int`
    Int(i64),
    /// A `float`
    Float(f64),
    /// A `str`
    Str(String),
    /// `bytes`
    Bytes(Vec<u8>),
    /// A `list`
    List(Vec<PyValue>),
    /// A `tuple`
    Tuple(Vec<PyValue>),
    /// A `dict`
    Dict(Vec<(PyValue, PyValue)>),
    /// A tensor whose bytes are handed to the writer later, in the order in which tensors stand in the saved value.
    Tensor(TensorSpec),
    /// A small tensor with its bytes.
    Filled(TensorSpec, Vec<u8>),
    /// An `io.BytesIO`; `torch.load(weights_only=True)` refuses it.
    BytesIo(Vec<u8>),
    /// An object that has only attributes.
    Attributes(ArgsStyle, Vec<(String, PyValue)>),
}

/// What a tensor will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Kind of its elements.
    pub dtype: TorchDtype,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of its elements; none when they are more than memory has addresses.
    pub fn bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |product, size| product.checked_mul(*size))
    }
}

/// How an object of attributes, such as Megatron's `args`, is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArgsStyle {
    /// An `OrderedDict` that has the attributes both as keys and as attributes of itself: `args.num_layers`,
    /// `getattr(args, "num_layers", None)`, `vars(args)` and `args["num_layers"]` all work, and
    /// `torch.load(weights_only=True)` takes it, since it sets attributes of an `OrderedDict` and of nothing else.
    #[default]
    OrderedDict,
    /// An `argparse.Namespace`, as Megatron and the reference converter write it. `weights_only=True` refuses it
    /// unless Python first says `torch.serialization.add_safe_globals([argparse.Namespace])`.
    Namespace,
    /// A `types.SimpleNamespace`, which newer Megatron registers as safe.
    SimpleNamespace,
}

impl From<&str> for PyValue {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl PyValue {
    /// A dict with texts for keys.
    pub fn dict<K: Into<String>>(pairs: impl IntoIterator<Item = (K, PyValue)>) -> Self {
        Self::Dict(pairs.into_iter().map(|(key, value)| (Self::Str(key.into()), value)).collect())
    }

    /// A tensor whose bytes come later.
    pub fn tensor(dtype: TorchDtype, shape: impl Into<Vec<usize>>) -> Self {
        Self::Tensor(TensorSpec { dtype, shape: shape.into() })
    }
}

/// A tensor of the pickle, in the order of its storages.
pub(super) struct Planned {
    pub(super) spec: TensorSpec,
    /// The bytes, if they are known already.
    pub(super) filled: Option<Vec<u8>>,
}

/// The pickle of a value, and the tensors that it names: the first is storage 0.
pub(super) fn encode(value: &PyValue) -> Result<(Vec<u8>, Vec<Planned>), String> {
    let mut encoder = Encoder { out: vec![0x80, 2], memo: HashMap::new(), tensors: Vec::new() };
    encoder.value(value, 0)?;
    encoder.out.push(b'.');
    Ok((encoder.out, encoder.tensors))
}

/// Values nest no deeper than the reader's limit.
const DEPTH: u32 = 100;

struct Encoder {
    out: Vec<u8>,
    /// Texts that stand in the pickle once and are recalled afterwards, by what they look like when written.
    memo: HashMap<Vec<u8>, u32>,
    tensors: Vec<Planned>,
}

impl Encoder {
    fn value(&mut self, value: &PyValue, depth: u32) -> Result<(), String> {
        if depth > DEPTH {
            return Err(format!("a value nests deeper than {DEPTH}"));
        }
        let below = depth + 1;
        match value {
            PyValue::None => self.out.push(b'N'),
            PyValue::Bool(value) => self.bool(*value),
            PyValue::Int(value) => self.int(*value),
            PyValue::Float(value) => {
                self.out.push(b'G');
                self.out.extend(value.to_be_bytes());
            }
            PyValue::Str(text) => self.text(text)?,
            PyValue::Bytes(bytes) => self.bytes(bytes)?,
            PyValue::List(items) => {
                self.out.extend(b"](");
                items.iter().try_for_each(|item| self.value(item, below))?;
                self.out.push(b'e');
            }
            PyValue::Tuple(items) => {
                self.out.push(b'(');
                items.iter().try_for_each(|item| self.value(item, below))?;
                self.out.push(b't');
            }
            PyValue::Dict(pairs) => {
                self.out.extend(b"}(");
                for (key, value) in pairs {
                    self.value(key, below)?;
                    self.value(value, below)?;
                }
                self.out.push(b'u');
            }
            PyValue::Tensor(spec) => self.tensor(spec, None)?,
            PyValue::Filled(spec, bytes) => self.tensor(spec, Some(bytes))?,
            PyValue::BytesIo(bytes) => {
                self.global("_io", "BytesIO");
                self.out.extend(b")\x81");
                // (content, position, attributes)
                self.bytes(bytes)?;
                self.int(0);
                self.out.extend(b"N\x87b");
            }
            PyValue::Attributes(style, fields) => self.attributes(*style, fields, below)?,
        }
        Ok(())
    }

    fn attributes(
        &mut self,
        style: ArgsStyle,
        fields: &[(String, PyValue)],
        below: u32,
    ) -> Result<(), String> {
        match style {
            ArgsStyle::OrderedDict => {
                self.global("collections", "OrderedDict");
                self.out.extend(b")R(");
                self.fields(fields, below)?;
                self.out.push(b'u');
            }
            ArgsStyle::Namespace => {
                self.global("argparse", "Namespace");
                self.out.extend(b")\x81");
            }
            ArgsStyle::SimpleNamespace => {
                self.global("types", "SimpleNamespace");
                self.out.extend(b")R");
            }
        }
        self.out.extend(b"}(");
        self.fields(fields, below)?;
        self.out.extend(b"ub");
        Ok(())
    }

    fn fields(&mut self, fields: &[(String, PyValue)], below: u32) -> Result<(), String> {
        for (name, value) in fields {
            if matches!(value, PyValue::Tensor(_) | PyValue::Filled(..)) {
                // They would be written twice in the style that has every field twice.
                return Err(format!("attribute {name} is a tensor"));
            }
            self.text(name)?;
            self.value(value, below)?;
        }
        Ok(())
    }

    fn tensor(&mut self, spec: &TensorSpec, filled: Option<&[u8]>) -> Result<(), String> {
        let bytes = spec.bytes().ok_or_else(|| format!("a tensor of shape {:?} is too large", spec.shape))?;
        if filled.is_some_and(|filled| filled.len() != bytes) {
            return Err(format!(
                "a tensor of shape {:?} was given with other than {bytes} bytes",
                spec.shape
            ));
        }
        // Kinds without a storage class of their own are views into untyped storages.
        let class = spec.dtype.storage_class();
        let rebuild = if class.is_some() { "_rebuild_tensor_v2" } else { "_rebuild_tensor_v3" };
        self.global("torch._utils", rebuild);
        self.out.push(b'(');
        self.out.push(b'(');
        self.shared_text("storage")?;
        match class {
            Some(class) => self.global("torch", class),
            None => self.global("torch.storage", "UntypedStorage"),
        }
        let key = self.tensors.len().to_string();
        self.text(&key)?;
        self.shared_text("cpu")?;
        self.size(if class.is_some() { bytes / spec.dtype.size() } else { bytes })?;
        self.out.extend(b"tQ");
        self.int(0);
        self.sizes(spec.shape.iter().copied())?;
        let mut strides = vec![1_usize; spec.shape.len()];
        for place in (1..spec.shape.len()).rev() {
            // torch counts a dimension of no elements as one of one.
            strides[place - 1] = strides[place].saturating_mul(spec.shape[place].max(1));
        }
        self.sizes(strides.into_iter())?;
        self.bool(false);
        self.global("collections", "OrderedDict");
        self.out.extend(b")R");
        if class.is_none() {
            self.global("torch", spec.dtype.name());
        }
        self.out.extend(b"tR");
        self.tensors.push(Planned { spec: spec.clone(), filled: filled.map(<[u8]>::to_vec) });
        Ok(())
    }

    fn sizes(&mut self, mut sizes: impl Iterator<Item = usize>) -> Result<(), String> {
        self.out.push(b'(');
        sizes.try_for_each(|size| self.size(size))?;
        self.out.push(b't');
        Ok(())
    }

    fn size(&mut self, size: usize) -> Result<(), String> {
        self.int(i64::try_from(size).map_err(|_| format!("a size of {size} is too large"))?);
        Ok(())
    }

    fn bool(&mut self, value: bool) {
        self.out.push(if value { 0x88 } else { 0x89 });
    }

    fn int(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.out.extend([b'K', value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.out.push(b'M');
            self.out.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.out.push(b'J');
            self.out.extend(value.to_le_bytes());
        } else {
            self.out.extend([0x8a, 8]);
            self.out.extend(value.to_le_bytes());
        }
    }

    fn text(&mut self, text: &str) -> Result<(), String> {
        let length = u32::try_from(text.len()).map_err(|_| "a text has more than 4 GiB")?;
        self.out.push(b'X');
        self.out.extend(length.to_le_bytes());
        self.out.extend(text.as_bytes());
        Ok(())
    }

    /// Bytes are text of the same codes in protocol 2, which is what `weights_only=True` reads.
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.global("_codecs", "encode");
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        self.text(&text)?;
        self.shared_text("latin1")?;
        self.out.extend(b"\x86R");
        Ok(())
    }

    fn shared_text(&mut self, text: &str) -> Result<(), String> {
        self.shared(format!("text {text}").into_bytes(), |encoder| encoder.text(text))
    }

    fn global(&mut self, module: &str, name: &str) {
        let line = format!("c{module}\n{name}\n").into_bytes();
        let written = self.shared(line.clone(), |encoder| {
            encoder.out.extend(line);
            Ok(())
        });
        debug_assert!(written.is_ok());
    }

    fn shared(
        &mut self,
        key: Vec<u8>,
        write: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        // The texts and classes that this file names are a few dozen: one byte holds their numbers.
        let next = self.memo.len() as u32;
        match self.memo.get(&key) {
            Some(place) => self.out.extend([b'h', *place as u8]),
            None if next > 255 => write(self)?,
            None => {
                write(self)?;
                self.out.extend([b'q', next as u8]);
                self.memo.insert(key, next);
            }
        }
        Ok(())
    }
}
