//! What a pickle holds, once it is read.
//!
//! All values of a file lie in one list and name each other by their place in it. So a value that a pickle mentions
//! a thousand times is stored once, a list may even hold itself, and neither reading nor dropping ever recurses.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

use super::dtype::TorchDtype;

/// The place of a value in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueId(pub(super) u32);

/// The place of a storage in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StorageId(pub(super) u32);

/// A Python value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`
    None,
    /// `True`, `False`
    Bool(bool),
    /// An `int` of 64 bits
    Int(i64),
    /// A longer `int`: its two's complement, lowest byte first
    BigInt(Arc<[u8]>),
    /// A `float`
    Float(f64),
    /// A `str`
    Str(Arc<str>),
    /// `bytes`, `bytearray`
    Bytes(Arc<[u8]>),
    /// A `list`
    List(Vec<ValueId>),
    /// A `tuple`, `torch.Size`
    Tuple(Vec<ValueId>),
    /// A `set`, `frozenset`
    Set(Vec<ValueId>),
    /// A `dict`, `OrderedDict`: keys and values in the order of the file; of equal keys the last counts
    Dict(Vec<(ValueId, ValueId)>),
    /// A class or function that is only named
    Global(Arc<Global>),
    /// A storage that no tensor was made of
    Storage(StorageId),
    /// A tensor
    Tensor(Arc<TensorInfo>),
    /// What some class or function would have made. It is never called: this is what the file would have given it.
    Object(Box<Object>),
}

impl Value {
    /// The values that this one holds.
    pub fn children(&self) -> impl Iterator<Item = ValueId> {
        let (items, pairs, single): (&[_], &[_], _) = match self {
            Self::List(items) | Self::Tuple(items) | Self::Set(items) => (items, &[], [None; 2]),
            Self::Dict(pairs) => (&[], pairs, [None; 2]),
            Self::Object(object) => (&object.items, &object.pairs, [Some(object.args), object.state]),
            _ => (&[], &[], [None; 2]),
        };
        let pairs = pairs.iter().flat_map(|&(key, value)| [key, value]);
        items.iter().copied().chain(pairs).chain(single.into_iter().flatten())
    }
}

/// A name in a module of Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// The module.
    pub module: String,
    /// The name in it; it may have dots.
    pub name: String,
}

impl std::fmt::Display for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.module, self.name)
    }
}

/// An opaque object.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// The class or function that Python would call; none when the file computes it.
    pub class: Option<Arc<Global>>,
    /// Its arguments.
    pub args: ValueId,
    /// What the object's state is set to: for most classes a dict of its attributes.
    pub state: Option<ValueId>,
    /// What is put into it as into a list.
    pub items: Vec<ValueId>,
    /// What is put into it as into a dict.
    pub pairs: Vec<(ValueId, ValueId)>,
}

/// A tensor: a view into a storage. Offset and strides are in elements, and were checked against the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Kind of its elements.
    pub dtype: TorchDtype,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// The storage it is a view into.
    pub storage: StorageId,
    /// First element.
    pub offset: usize,
    /// Elements between neighbours of each dimension.
    pub strides: Vec<usize>,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        // Checked when the tensor was made.
        self.shape.iter().product()
    }

    /// Bytes of the elements, without gaps.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Whether the elements lie in order and without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size == 0 {
                return true;
            }
            if size > 1 {
                if stride != expected {
                    return false;
                }
                expected *= size;
            }
        }
        true
    }
}

/// All values of a file.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) list: Vec<Value>,
    pub(super) root: u32,
}

/// One value, and the way to those it holds.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    values: &'a Values,
    id: ValueId,
}

impl<'a> Node<'a> {
    pub(super) fn root(values: &'a Values) -> Self {
        Self { values, id: ValueId(values.root) }
    }

    /// The value that one of this file's values names.
    pub fn at(self, id: ValueId) -> Self {
        Self { values: self.values, id }
    }

    /// The value.
    pub fn value(self) -> &'a Value {
        &self.values.list[self.id.0 as usize]
    }

    /// Text.
    pub fn as_str(self) -> Option<&'a str> {
        match self.value() {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number.
    pub fn as_int(self) -> Option<i64> {
        match self.value() {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// A number.
    pub fn as_float(self) -> Option<f64> {
        match self.value() {
            Value::Int(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// A tensor.
    pub fn as_tensor(self) -> Option<&'a TensorInfo> {
        match self.value() {
            Value::Tensor(info) => Some(info),
            _ => None,
        }
    }

    /// Keys and values of a dict.
    pub fn entries(self) -> impl Iterator<Item = (Node<'a>, Node<'a>)> {
        let pairs: &[_] = match self.value() {
            Value::Dict(pairs) => pairs,
            Value::Object(object) => &object.pairs,
            _ => &[],
        };
        pairs.iter().map(move |&(key, value)| (self.at(key), self.at(value)))
    }

    /// Elements of a list, tuple or set.
    pub fn items(self) -> impl Iterator<Item = Node<'a>> {
        let items: &[_] = match self.value() {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => items,
            Value::Object(object) => &object.items,
            _ => &[],
        };
        items.iter().map(move |&id| self.at(id))
    }

    /// The value of a dict's key, or of an object's attribute.
    pub fn get(self, key: &str) -> Option<Node<'a>> {
        let named = |node: Node<'a>| node.entries().filter(|(name, _)| name.as_str() == Some(key)).last();
        let attribute = match self.value() {
            Value::Object(object) => object.state.and_then(|state| named(self.at(state))),
            _ => None,
        };
        attribute.or_else(|| named(self)).map(|(_, value)| value)
    }

    /// The class of the value, as Python prints it.
    pub fn class(self) -> String {
        match self.value() {
            Value::None => "NoneType".into(),
            Value::Bool(_) => "bool".into(),
            Value::Int(_) | Value::BigInt(_) => "int".into(),
            Value::Float(_) => "float".into(),
            Value::Str(_) => "str".into(),
            Value::Bytes(_) => "bytes".into(),
            Value::List(_) => "list".into(),
            Value::Tuple(_) => "tuple".into(),
            Value::Set(_) => "set".into(),
            Value::Dict(_) => "dict".into(),
            Value::Global(_) => "type".into(),
            Value::Storage(_) => "torch.UntypedStorage".into(),
            Value::Tensor(_) => "torch.Tensor".into(),
            Value::Object(object) => object.class.as_ref().map_or("object".into(), |class| class.to_string()),
        }
    }

    /// One line about the value, of at most a few hundred characters whatever it holds.
    pub fn describe(self) -> String {
        match self.value() {
            Value::None => "None".into(),
            Value::Bool(value) => if *value { "True" } else { "False" }.into(),
            Value::Int(value) => value.to_string(),
            Value::BigInt(bytes) => format!("an int of {} bytes", bytes.len()),
            Value::Float(value) => value.to_string(),
            Value::Str(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
                format!("a {} of {}", self.class(), items.len())
            }
            Value::Dict(pairs) => format!("a dict of {}", pairs.len()),
            Value::Global(global) => global.to_string().chars().take(160).collect(),
            Value::Storage(_) => "a storage".into(),
            Value::Tensor(info) => {
                let mut text = format!("{} [", info.dtype);
                for (place, size) in info.shape.iter().enumerate() {
                    let _ = write!(text, "{}{size}", if place == 0 { "" } else { ", " });
                }
                text + "]"
            }
            Value::Object(_) => format!("a {}", self.class().chars().take(160).collect::<String>()),
        }
    }

    /// This value and all that it holds, each once, in no order that means anything.
    pub fn walk(self) -> impl Iterator<Item = Node<'a>> {
        let mut seen = HashSet::from([self.id]);
        let mut open = vec![self.id];
        std::iter::from_fn(move || {
            let node = self.at(open.pop()?);
            let mut add = |id: ValueId| {
                if seen.insert(id) {
                    open.push(id);
                }
            };
            node.value().children().for_each(&mut add);
            Some(node)
        })
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}
