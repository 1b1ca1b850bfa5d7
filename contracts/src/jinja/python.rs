//! Methods of Python's strings, where minijinja's own differ or are missing.

use minijinja::value::{Kwargs, Tuple, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// `str.isspace`: Unicode white space and the four ASCII separators, which Rust does not count.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Which ends of a string a method strips.
#[derive(Clone, Copy)]
enum Ends {
    Left,
    Right,
    Both,
}

fn strip<'a>(text: &'a str, chars: Option<&str>, ends: Ends) -> &'a str {
    let stripped = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    match ends {
        Ends::Left => text.trim_start_matches(stripped),
        Ends::Right => text.trim_end_matches(stripped),
        Ends::Both => text.trim_matches(stripped),
    }
}

/// Jinja's `trim`.
pub(super) fn trim(value: &Value, chars: Option<&str>, kwargs: Kwargs) -> Result<Value, Error> {
    let chars = match chars {
        Some(chars) => Some(chars),
        None => kwargs.get("chars")?,
    };
    kwargs.assert_all_used()?;
    Ok(match value.as_str() {
        Some(text) => Value::from(strip(text, chars, Ends::Both)),
        None => Value::from(strip(&value.to_string(), chars, Ends::Both)),
    })
}

/// Calls a method that minijinja does not know.
pub(super) fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let stripped = |ends| {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(Value::from(strip(text, chars, ends)))
    };
    Some(match method {
        "strip" => stripped(Ends::Both),
        "lstrip" => stripped(Ends::Left),
        "rstrip" => stripped(Ends::Right),
        "removeprefix" => {
            from_args(args).map(|(prefix,): (&str,)| text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            from_args(args).map(|(suffix,): (&str,)| text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "casefold" => Ok(Value::from(text.to_lowercase())),
        "rsplit" => rsplit(text, args),
        "partition" => from_args(args).map(|(separator,): (&str,)| match text.split_once(separator) {
            Some((before, after)) => triple(before, separator, after),
            None => triple(text, "", ""),
        }),
        "rpartition" => from_args(args).map(|(separator,): (&str,)| match text.rsplit_once(separator) {
            Some((before, after)) => triple(before, separator, after),
            None => triple("", "", text),
        }),
        _ => return None,
    })
}

fn triple(before: &str, separator: &str, after: &str) -> Value {
    Value::from(Tuple::from([before, separator, after].map(Value::from)))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    // a negative limit is none
    let pieces = most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most + 1);
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(pieces, separator).collect(),
        None => split_space_from_end(text, pieces),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_space_from_end(text: &str, pieces: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if parts.len() + 1 >= pieces {
            parts.push(rest);
            break;
        }
        let start =
            rest.rfind(is_space).map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    parts
}
