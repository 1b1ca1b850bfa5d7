//! The `tojson` of transformers: Python's `json.dumps` with `ensure_ascii=False` by default.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deeper values than this are refused, as Python refuses to recurse without end.
const MAX_DEPTH: usize = 500;

/// How `json.dumps` was called.
struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value|tojson(ensure_ascii, indent, separators, sort_keys=…)`.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    separators: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let keyword = |positional: Option<Value>, name| match positional {
        Some(value) => Ok(Some(value)),
        None => kwargs.get::<Option<Value>>(name),
    };
    let indent = keyword(indent, "indent")?;
    let separators = keyword(separators, "separators")?;
    let ensure_ascii =
        ensure_ascii.map_or_else(|| kwargs.get::<Option<bool>>("ensure_ascii"), |v| Ok(Some(v)))?;
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?;
    kwargs.assert_all_used()?;

    let indent = match indent {
        Some(value) if !value.is_none() => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(value.as_usize().unwrap_or(0)),
        }),
        _ => None,
    };
    let (item_separator, key_separator) = match separators {
        Some(value) if !value.is_none() => {
            (value.get_item_by_index(0)?.to_string(), value.get_item_by_index(1)?.to_string())
        }
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = Style {
        ensure_ascii: ensure_ascii.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: sort_keys.unwrap_or(false),
    };
    let mut json = String::new();
    style.write(&mut json, value, 0)?;
    Ok(json)
}

impl Style {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Map => return self.write_map(out, value, depth),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                return self.write_items(out, ('[', ']'), depth, &items, |out, item| {
                    self.write(out, item, depth + 1)
                });
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of kind {kind}"),
                ));
            }
        }
        Ok(())
    }

    fn write_map(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            let item = value.get_item(&key)?;
            entries.push((key_text(&key)?, item));
        }
        if self.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.write_items(out, ('{', '}'), depth, &entries, |out, (key, item)| {
            self.write_string(out, key);
            out.push_str(&self.key_separator);
            self.write(out, item, depth + 1)
        })
    }

    fn write_items<T>(
        &self,
        out: &mut String,
        (open, close): (char, char),
        depth: usize,
        items: &[T],
        mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                out.push_str(&self.item_separator);
            }
            self.new_line(out, depth + 1);
            write(out, item)?;
        }
        if !items.is_empty() {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                // Python escapes DEL only when everything beyond printable ASCII is escaped
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => push_escaped(out, c),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn push_escaped(out: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        // writing to a string cannot fail
        let _ = write!(out, "\\u{unit:04x}");
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Number => number(key),
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: a key of kind {kind}"))),
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    Ok(float(f64::try_from(value.clone())?))
}

/// `float.__repr__`: the shortest digits that read back, in exponent form outside 1e-4 … 1e16.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}
