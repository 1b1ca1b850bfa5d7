//! What the instructions of a pickle work on: a stack, a memo, and the values made so far, all within limits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::ReadOptions;
use super::tensor::Storages;
use super::value::{Global, Object, Value, ValueId, Values};

pub(super) const NONE: ValueId = ValueId(0);
pub(super) const TRUE: ValueId = ValueId(1);
pub(super) const FALSE: ValueId = ValueId(2);

/// Why a pickle is refused.
pub(super) enum Fault {
    /// Damaged, unknown or too large.
    Bad(String),
    /// It calls what runs code.
    Code(String),
}

impl<T: Into<String>> From<T> for Fault {
    fn from(detail: T) -> Self {
        Self::Bad(detail.into())
    }
}

pub(super) type Step<T> = std::result::Result<T, Fault>;

pub(super) struct Machine<'a> {
    pickle: &'a [u8],
    at: usize,
    pub(super) options: &'a ReadOptions,
    pub(super) storages: Storages<'a>,
    pub(super) values: Vec<Value>,
    /// How deep each value nests.
    depth: Vec<u32>,
    pub(super) stack: Vec<ValueId>,
    pub(super) marks: Vec<usize>,
    pub(super) memo: HashMap<u32, ValueId>,
    /// Bytes that may still be copied from one value into another.
    copies: usize,
    pub(super) globals: BTreeSet<String>,
}

/// What a pickle gave.
pub(super) struct Unpickled<'a> {
    pub(super) values: Values,
    pub(super) storages: Storages<'a>,
    /// Every class and function that the pickle names.
    pub(super) globals: BTreeSet<String>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(pickle: &'a [u8], storages: Storages<'a>, options: &'a ReadOptions) -> Self {
        Self {
            pickle,
            at: 0,
            options,
            storages,
            values: vec![Value::None, Value::Bool(true), Value::Bool(false)],
            depth: vec![0; 3],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            copies: options.pickle_bytes,
            globals: BTreeSet::new(),
        }
    }

    /// Runs to the end; a fault comes with its place in the pickle.
    pub(super) fn run(mut self) -> std::result::Result<Unpickled<'a>, (usize, Fault)> {
        if self.pickle.len() > self.options.pickle_bytes {
            let (have, most) = (self.pickle.len(), self.options.pickle_bytes);
            return Err((0, format!("it has {have} bytes, more than the limit of {most}").into()));
        }
        loop {
            let place = self.at;
            match self.step() {
                Ok(None) => (),
                Ok(Some(root)) => {
                    let values = Values { list: self.values, root: root.0 };
                    return Ok(Unpickled { values, storages: self.storages, globals: self.globals });
                }
                Err(fault) => return Err((place, fault)),
            }
        }
    }

    pub(super) fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    pub(super) fn tuple(&self, id: ValueId) -> &[ValueId] {
        match self.value(id) {
            Value::Tuple(items) => items,
            _ => &[],
        }
    }

    pub(super) fn push(&mut self, value: Value) -> Step<ValueId> {
        let id = self.add(value)?;
        self.stack.push(id);
        Ok(id)
    }

    pub(super) fn push_id(&mut self, id: ValueId) {
        self.stack.push(id);
    }

    pub(super) fn object(&mut self, class: Option<Arc<Global>>, args: ValueId) -> Step<()> {
        let object = Object { class, args, state: None, items: Vec::new(), pairs: Vec::new() };
        self.push(Value::Object(Box::new(object)))?;
        Ok(())
    }

    /// Counts what is copied, not only named: a few bytes of a pickle can ask for the same copy again and again.
    pub(super) fn copy(&mut self, bytes: usize) -> Step<()> {
        let left = self.copies.checked_sub(bytes);
        self.copies = left.ok_or("its instructions make more data than the limit allows")?;
        Ok(())
    }

    pub(super) fn add(&mut self, value: Value) -> Step<ValueId> {
        if self.values.len() >= self.options.values {
            return Err(format!("it holds more than {} values", self.options.values).into());
        }
        let id = ValueId(self.values.len() as u32);
        let depth = self.deepest(value.children())?;
        self.values.push(value);
        self.depth.push(depth);
        Ok(id)
    }

    /// The depth of a value that holds `children`.
    pub(super) fn deepest(&self, children: impl Iterator<Item = ValueId>) -> Step<u32> {
        let inner = children.map(|id| self.depth[id.0 as usize] + 1).max().unwrap_or(0);
        if inner > self.options.depth {
            return Err(format!("its values nest deeper than {}", self.options.depth).into());
        }
        Ok(inner)
    }

    pub(super) fn deepen(&mut self, target: ValueId, children: &[ValueId]) -> Step<()> {
        let inner = self.deepest(children.iter().copied())?;
        let depth = &mut self.depth[target.0 as usize];
        *depth = inner.max(*depth);
        Ok(())
    }

    pub(super) fn top(&self) -> Step<ValueId> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack[floor.min(self.stack.len())..].last();
        top.copied().ok_or_else(|| "it takes a value where there is none".into())
    }

    pub(super) fn pop(&mut self) -> Step<ValueId> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    pub(super) fn pop_many(&mut self, count: usize) -> Step<Vec<ValueId>> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|start| *start >= floor);
        Ok(self.stack.split_off(start.ok_or("it takes a value where there is none")?))
    }

    pub(super) fn pop_array<const N: usize>(&mut self) -> Step<[ValueId; N]> {
        self.pop_many(N)?.try_into().map_err(|_| "it takes a value where there is none".into())
    }

    pub(super) fn pop_mark(&mut self) -> Step<Vec<ValueId>> {
        let mark = self.marks.pop().ok_or("it goes back to a mark that it never set")?;
        Ok(self.stack.split_off(mark))
    }

    pub(super) fn take(&mut self, length: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(length).ok_or("it breaks off")?;
        let bytes = self.pickle.get(self.at..end).ok_or("it breaks off")?;
        self.at = end;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| "it breaks off".into())
    }

    pub(super) fn byte(&mut self) -> Step<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn length4(&mut self) -> Step<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| "it breaks off".into())
    }

    pub(super) fn length8(&mut self) -> Step<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| "it breaks off".into())
    }

    pub(super) fn line(&mut self) -> Step<String> {
        let rest = &self.pickle[self.at..];
        let length = memchr::memchr(b'\n', rest).ok_or("it breaks off")?;
        let line = std::str::from_utf8(&rest[..length]).map_err(|_| "the name of a class is no UTF-8")?;
        self.at += length + 1;
        Ok(line.to_owned())
    }
}
