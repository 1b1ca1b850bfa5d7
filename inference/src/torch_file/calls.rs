//! What stands for the calls that a pickle asks for: the few that rebuild tensors and containers are done here, and
//! every other becomes an opaque object.

use std::sync::Arc;

use super::dtype::TorchDtype;
use super::machine::{Fault, Machine, NONE, Step};
use super::tensor::MAX_DIMENSIONS;
use super::value::{Global, TensorInfo, Value, ValueId};

/// Modules whose functions run programs or code. No checkpoint needs them; a file that calls them was made to harm.
const CODE_MODULES: [&str; 22] = [
    "os",
    "posix",
    "nt",
    "ntpath",
    "posixpath",
    "subprocess",
    "_posixsubprocess",
    "pty",
    "sys",
    "runpy",
    "shutil",
    "socket",
    "importlib",
    "_frozen_importlib",
    "imp",
    "ctypes",
    "code",
    "pdb",
    "bdb",
    "webbrowser",
    "commands",
    "timeit",
];
/// And such functions among the builtins.
const CODE_BUILTINS: [&str; 9] =
    ["eval", "exec", "execfile", "compile", "__import__", "open", "input", "breakpoint", "apply"];

impl Global {
    pub(super) fn is(&self, module: &str, name: &str) -> bool {
        self.module == module && self.name == name
    }

    fn is_builtin(&self, name: &str) -> bool {
        // Protocol 2 writes the names that Python 2 had.
        self.is("builtins", name) || self.is("__builtin__", name)
    }

    /// Whether calling it runs code that the file chooses.
    pub(super) fn runs_code(&self) -> bool {
        // A dotted name walks through attributes: `torch os.system` is os.system.
        let mut parts = self.module.split('.').take(1).chain(self.name.split('.').rev().skip(1));
        parts.any(|part| CODE_MODULES.contains(&part))
            || CODE_BUILTINS.iter().any(|name| self.is_builtin(name))
    }
}

impl Machine<'_> {
    /// Stands for `callable(*args)`, or for `callable.__new__(callable, *args)`.
    pub(super) fn call(&mut self, callable: ValueId, args: ValueId) -> Step<()> {
        let Value::Global(class) = self.value(callable) else {
            // Only what getattr and the like returned can be here.
            if self.options.refuse_code {
                return Err(Fault::Code("a function that it computes".into()));
            }
            let args = self.add(Value::Tuple(vec![callable, args]))?;
            return self.object(None, args);
        };
        let class = class.clone();
        if self.options.refuse_code && class.runs_code() {
            return Err(Fault::Code(class.to_string()));
        }
        let given = self.tuple(args);
        match (class.module.as_str(), class.name.as_str(), given) {
            (
                "torch._utils",
                "_rebuild_tensor" | "_rebuild_tensor_v2",
                &[storage, offset, size, stride, ..],
            ) => self.tensor([storage, offset, size, stride], None),
            ("torch._utils", "_rebuild_tensor_v3", &[storage, offset, size, stride, _, _, dtype, ..]) => {
                match self.dtype(dtype) {
                    Some(dtype) => self.tensor([storage, offset, size, stride], Some(dtype)),
                    None => self.object(Some(class), args),
                }
            }
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state", &[data, ..])
            | ("torch", "Size", &[data])
            | ("collections", "Counter", &[data]) => {
                self.push_id(data);
                Ok(())
            }
            // A tensor with attributes, or of a subclass: func(*args) of it is the tensor.
            ("torch._tensor", "_rebuild_from_type_v2", &[func, _, inner, ..]) if matches!(self.value(func), Value::Global(func) if func.name.starts_with("_rebuild_tensor")) => {
                self.call(func, inner)
            }
            ("collections", "OrderedDict", &[]) | ("collections", "defaultdict", _) => {
                self.push(Value::Dict(Vec::new())).map(drop)
            }
            ("collections", "OrderedDict", &[items]) => self.ordered_dict(class, args, items),
            ("_codecs", "encode", &[text, ..]) => self.encode(class, args, text),
            ("copyreg" | "copy_reg", "_reconstructor", &[of, ..]) => match self.value(of) {
                Value::Global(of) => {
                    let of = of.clone();
                    self.object(Some(of), NONE)
                }
                _ => self.object(Some(class), args),
            },
            ("builtins" | "__builtin__", "bytes" | "bytearray", &[]) => {
                self.push(Value::Bytes(Arc::default())).map(drop)
            }
            ("builtins" | "__builtin__", "bytearray", &[text, ..]) => self.encode(class, args, text),
            ("builtins" | "__builtin__", "set" | "frozenset", &[items]) => match self.value(items) {
                Value::List(items) => {
                    let items = items.clone();
                    self.copy(items.len() * size_of::<ValueId>())?;
                    self.push(Value::Set(items)).map(drop)
                }
                _ => self.object(Some(class), args),
            },
            _ => self.object(Some(class), args),
        }
    }

    /// `OrderedDict([[key, value], …])`, as Python 2 wrote it.
    fn ordered_dict(&mut self, class: Arc<Global>, args: ValueId, items: ValueId) -> Step<()> {
        let pair = |id: &ValueId| match self.value(*id) {
            Value::List(pair) | Value::Tuple(pair) => <[ValueId; 2]>::try_from(pair.as_slice()).ok(),
            _ => None,
        };
        let pairs = match self.value(items) {
            Value::List(items) => items.iter().map(pair).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let Some(pairs) = pairs else { return self.object(Some(class), args) };
        self.copy(pairs.len() * size_of::<[ValueId; 2]>())?;
        self.push(Value::Dict(pairs.into_iter().map(|[key, value]| (key, value)).collect())).map(drop)
    }

    /// `_codecs.encode(text, 'latin1')`: how protocol 2 writes bytes.
    fn encode(&mut self, class: Arc<Global>, args: ValueId, text: ValueId) -> Step<()> {
        let text = match self.value(text) {
            Value::Str(text) => text.clone(),
            Value::Bytes(bytes) => {
                let bytes = bytes.clone();
                return self.push(Value::Bytes(bytes)).map(drop);
            }
            _ => return self.object(Some(class), args),
        };
        self.copy(text.len())?;
        match text.chars().map(|it| u8::try_from(u32::from(it))).collect::<std::result::Result<Vec<u8>, _>>()
        {
            Ok(bytes) => self.push(Value::Bytes(bytes.into())).map(drop),
            Err(_) => self.object(Some(class), args),
        }
    }

    fn dtype(&self, id: ValueId) -> Option<TorchDtype> {
        match self.value(id) {
            Value::Global(dtype) if dtype.module == "torch" => TorchDtype::from_name(&dtype.name),
            _ => None,
        }
    }

    /// `("storage", class, key, location, elements)`.
    pub(super) fn persistent(&mut self, id: ValueId) -> Step<()> {
        let &[kind, class, key, _, elements, ..] = self.tuple(id) else {
            return Err("it names an outer object that is no storage".into());
        };
        let (Value::Str(kind), Value::Global(class), Value::Str(key)) =
            (self.value(kind), self.value(class), self.value(key))
        else {
            return Err("it names an outer object that is no storage".into());
        };
        if kind.as_ref() != "storage" || !matches!(class.module.as_str(), "torch" | "torch.storage") {
            return Err(format!("it names an outer object of kind {kind:?}, known is storage").into());
        }
        let Some(dtype) = TorchDtype::from_storage_class(&class.name) else {
            return Err(format!("{class} is no kind of storage that is known").into());
        };
        let elements = self.size(elements)?;
        let key = key.clone();
        let storage = self.storages.find(&key, dtype, elements)?;
        self.push(Value::Storage(storage)).map(drop)
    }

    /// A tensor of (storage, offset, size, stride), with `dtype` instead of the storage's.
    fn tensor(
        &mut self,
        [storage, offset, size, stride]: [ValueId; 4],
        dtype: Option<TorchDtype>,
    ) -> Step<()> {
        let Value::Storage(storage) = *self.value(storage) else {
            return Err("a tensor is made of what is no storage".into());
        };
        let offset = self.size(offset)?;
        let (size, stride) = (self.sizes(size)?, self.sizes(stride)?);
        let dtype = dtype.unwrap_or(self.storages.dtype(storage));
        let info = TensorInfo { dtype, shape: size, storage, offset, strides: stride };
        self.storages.check(&info)?;
        self.copy(size_of::<TensorInfo>() + 2 * size_of::<usize>() * info.shape.len())?;
        self.push(Value::Tensor(Arc::new(info))).map(drop)
    }

    fn sizes(&self, id: ValueId) -> Step<Vec<usize>> {
        match self.value(id) {
            Value::Tuple(items) | Value::List(items) if items.len() <= MAX_DIMENSIONS => {
                items.iter().map(|id| self.size(*id)).collect()
            }
            Value::Tuple(_) | Value::List(_) => {
                Err(format!("a tensor has more than {MAX_DIMENSIONS} dimensions").into())
            }
            _ => Err("the shape of a tensor is no tuple".into()),
        }
    }

    fn size(&self, id: ValueId) -> Step<usize> {
        let size = match self.value(id) {
            Value::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        };
        size.ok_or_else(|| "a size, offset or stride of a tensor is no number from 0 on".into())
    }
}
