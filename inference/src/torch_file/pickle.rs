//! The instructions of a pickle, protocols 2 to 5: they build values, and never call anything.

use std::sync::Arc;

use super::machine::{FALSE, Machine, NONE, Step, TRUE};
use super::value::{Global, Value, ValueId};

impl Machine<'_> {
    /// One instruction; the root at the last.
    pub(super) fn step(&mut self) -> Step<Option<ValueId>> {
        let opcode = self.byte()?;
        match opcode {
            // PROTO, FRAME: a version that is not known shows in unknown instructions.
            0x80 => drop(self.byte()?),
            0x95 => drop(self.take(8)?),
            // STOP
            b'.' => {
                let root = self.pop()?;
                return match self.stack.len() {
                    0 => Ok(Some(root)),
                    left => Err(format!("it ends with {left} values too many").into()),
                };
            }
            // NONE, NEWTRUE, NEWFALSE
            b'N' => self.stack.push(NONE),
            0x88 => self.stack.push(TRUE),
            0x89 => self.stack.push(FALSE),
            // BININT, BININT1, BININT2, LONG1, LONG4
            b'J' => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()))?;
            }
            b'K' => {
                let number = self.byte()?;
                self.push(Value::Int(number.into()))?;
            }
            b'M' => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(number.into()))?;
            }
            0x8a => {
                let length = self.byte()?;
                self.long(length.into())?;
            }
            0x8b => {
                let length = self.length4()?;
                self.long(length)?;
            }
            // BINFLOAT
            b'G' => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(number))?;
            }
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
            b'X' => {
                let length = self.length4()?;
                self.text(length)?;
            }
            0x8c => {
                let length = self.byte()?;
                self.text(length.into())?;
            }
            0x8d => {
                let length = self.length8()?;
                self.text(length)?;
            }
            // SHORT_BINSTRING, BINSTRING of Python 2; SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8
            b'U' | b'C' => {
                let length = self.byte()?;
                self.bytes(length.into(), opcode == b'U')?;
            }
            b'T' | b'B' => {
                let length = self.length4()?;
                self.bytes(length, opcode == b'T')?;
            }
            0x8e | 0x96 => {
                let length = self.length8()?;
                self.bytes(length, false)?;
            }
            // EMPTY_LIST, EMPTY_TUPLE, EMPTY_DICT, EMPTY_SET
            b']' => drop(self.push(Value::List(Vec::new()))?),
            b')' => drop(self.push(Value::Tuple(Vec::new()))?),
            b'}' => drop(self.push(Value::Dict(Vec::new()))?),
            0x8f => drop(self.push(Value::Set(Vec::new()))?),
            // MARK, POP, POP_MARK, DUP
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }
            // TUPLE, TUPLE1, TUPLE2, TUPLE3, LIST, DICT, FROZENSET
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items))?;
            }
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.push(Value::Tuple(items))?;
            }
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(items))?;
            }
            b'd' => {
                let pairs = in_pairs(&self.pop_mark()?)?;
                self.push(Value::Dict(pairs))?;
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Value::Set(items))?;
            }
            // APPEND, APPENDS, ADDITEMS, SETITEM, SETITEMS
            b'a' => {
                let item = self.pop()?;
                self.extend(&[item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.extend(&items)?;
            }
            b's' => {
                let pair = self.pop_many(2)?;
                self.set(&pair)?;
            }
            b'u' => {
                let pairs = self.pop_mark()?;
                self.set(&pairs)?;
            }
            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
            b'q' => {
                let key = self.byte()?;
                self.remember(key.into())?;
            }
            b'r' => {
                let key = u32::from_le_bytes(self.array()?);
                self.remember(key)?;
            }
            0x94 => self.remember(self.memo.len() as u32)?,
            b'h' => {
                let key = self.byte()?;
                self.recall(key.into())?;
            }
            b'j' => {
                let key = u32::from_le_bytes(self.array()?);
                self.recall(key)?;
            }
            // GLOBAL, STACK_GLOBAL
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let [module, name] = self.pop_array()?;
                let (Value::Str(module), Value::Str(name)) = (self.value(module), self.value(name)) else {
                    return Err("the name of a class is no text".into());
                };
                let (module, name) = (module.to_string(), name.to_string());
                self.copy(module.len() + name.len())?;
                self.global(module, name)?;
            }
            // REDUCE, NEWOBJ, NEWOBJ_EX, BUILD
            b'R' | 0x81 => {
                let [callable, args] = self.pop_array()?;
                self.call(callable, args)?;
            }
            0x92 => {
                let [callable, args, named] = self.pop_array()?;
                let args = self.add(Value::Tuple(vec![args, named]))?;
                self.call(callable, args)?;
            }
            b'b' => {
                let [object, state] = self.pop_array()?;
                self.build(object, state)?;
            }
            // BINPERSID
            b'Q' => {
                let id = self.pop()?;
                self.persistent(id)?;
            }
            other => return Err(format!("instruction 0x{other:02x} is not one that torch writes").into()),
        }
        Ok(None)
    }

    fn global(&mut self, module: String, name: String) -> Step<()> {
        let global = Global { module, name };
        if global.module.len() + global.name.len() > 1000 {
            return Err("the name of a class is longer than 1000 bytes".into());
        }
        self.globals.insert(global.to_string());
        self.push(Value::Global(Arc::new(global)))?;
        Ok(())
    }

    fn long(&mut self, length: usize) -> Step<()> {
        let bytes = self.take(length)?;
        let value = if bytes.len() <= 8 {
            let fill = if bytes.last().is_some_and(|last| *last >= 0x80) { 0xff } else { 0 };
            let mut wide = [fill; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            Value::Int(i64::from_le_bytes(wide))
        } else {
            Value::BigInt(bytes.into())
        };
        self.push(value)?;
        Ok(())
    }

    fn text(&mut self, length: usize) -> Step<()> {
        // Python writes lone surrogates too; no name of a tensor has them, so they are shown as unknown.
        let text = String::from_utf8_lossy(self.take(length)?);
        let value = Value::Str(text.into());
        self.push(value)?;
        Ok(())
    }

    fn bytes(&mut self, length: usize, is_python2: bool) -> Step<()> {
        let bytes = self.take(length)?;
        // Strings of Python 2 are names when they are ASCII, as in files that torch of that time wrote.
        let value = match std::str::from_utf8(bytes) {
            Ok(text) if is_python2 => Value::Str(text.into()),
            _ => Value::Bytes(bytes.into()),
        };
        self.push(value)?;
        Ok(())
    }

    fn extend(&mut self, items: &[ValueId]) -> Step<()> {
        let target = self.top()?;
        self.deepen(target, items)?;
        match &mut self.values[target.0 as usize] {
            Value::List(list) | Value::Set(list) => list.extend_from_slice(items),
            Value::Object(object) => object.items.extend_from_slice(items),
            _ => return Err("something is appended to what is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, flat: &[ValueId]) -> Step<()> {
        let target = self.top()?;
        self.deepen(target, flat)?;
        let pairs = in_pairs(flat)?;
        match &mut self.values[target.0 as usize] {
            Value::Dict(dict) => dict.extend(pairs),
            Value::Object(object) => object.pairs.extend(pairs),
            _ => return Err("a key is set in what is no dict".into()),
        }
        Ok(())
    }

    fn build(&mut self, target: ValueId, state: ValueId) -> Step<()> {
        match self.value(target) {
            Value::Object(_) => {
                self.deepen(target, &[state])?;
                if let Value::Object(object) = &mut self.values[target.0 as usize] {
                    object.state = Some(state);
                }
            }
            // Attributes of a state dict (`_metadata`) or of a parameter: nothing that its values need.
            Value::Dict(_) | Value::Tensor(_) => (),
            _ => return Err("a state is set in what has none".into()),
        }
        self.stack.push(target);
        Ok(())
    }

    fn remember(&mut self, key: u32) -> Step<()> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Step<()> {
        let id = self.memo.get(&key).ok_or_else(|| format!("it recalls value {key}, which it never kept"))?;
        self.stack.push(*id);
        Ok(())
    }
}

fn in_pairs(flat: &[ValueId]) -> Step<Vec<(ValueId, ValueId)>> {
    match flat.as_chunks() {
        (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
        _ => Err("a key of a dict has no value".into()),
    }
}
