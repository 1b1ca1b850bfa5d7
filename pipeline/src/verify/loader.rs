//! `sample_loader.py`: a loader that returns a field its class does not know loses every sample, and
//! Energon says nothing. Nothing is executed: the returned keys are read from the text.

use packd_sinks::SAMPLE_LOADER;

use super::context::Context;
use super::fault::FaultKind;

/// The fields of the trainer's `PackedCaptioningSample`, and those of every sample of Energon.
const FIELDS: [&str; 11] = [
    "images",
    "prompts",
    "captions",
    "patch_positions",
    "fps",
    "timestamp_decimal",
    "__key__",
    "__restore_key__",
    "__subflavor__",
    "__subflavors__",
    "__sources__",
];
/// Of these, the ones without a default that Energon does not fill in itself.
const NEEDED: [&str; 3] = ["images", "prompts", "captions"];
const CLASS: &str = "PackedCaptioningSample";

/// Checks one function of a script; `class` is what a sample loader's result is given to.
pub(super) fn check(context: &Context<'_>, file: &str, text: &str, function: &str, class: Option<&str>) {
    if text == SAMPLE_LOADER {
        return;
    }
    let fault = |detail: String| context.faults.add(FaultKind::SampleLoader, file, detail);
    let tokens = tokens(text);
    let Some(body) = function_body(&tokens, function) else {
        return fault(format!("it defines no function {function}"));
    };
    if class == Some(CLASS) {
        match returned_fields(body) {
            Some(fields) => {
                let unknown: Vec<&str> =
                    fields.iter().copied().filter(|field| !FIELDS.contains(field)).collect();
                if !unknown.is_empty() {
                    let detail = format!(
                        "{function} returns {}, unknown to {CLASS}: every sample is lost",
                        unknown.join(", ")
                    );
                    return fault(detail);
                }
                let missing: Vec<&str> =
                    NEEDED.iter().copied().filter(|field| !fields.contains(field)).collect();
                if !missing.is_empty() {
                    return fault(format!("{function} does not return {}", missing.join(", ")));
                }
            }
            None => context.warn(format!("{file}: what {function} returns cannot be read from its text")),
        }
    }
    if text.contains("Written by packd.") && !context.faults.has(file) {
        fault("it is packd's own loader, and it was changed".into());
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'a> {
    /// A name or number, and whether it stands at the very start of a line.
    Word(&'a str, bool),
    Text(&'a str),
    Sign(char),
}

/// As much of Python's lexer as the keys of a dict need.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'#' => at = text[at..].find('\n').map_or(bytes.len(), |end| at + end),
            b'"' | b'\'' => {
                let quote =
                    if text[at..].starts_with("\"\"\"") || text[at..].starts_with("'''") { 3 } else { 1 };
                let mark = &text[at..at + quote];
                let start = at + quote;
                let mut end = start;
                while end < bytes.len() && !text.as_bytes()[end..].starts_with(mark.as_bytes()) {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                tokens.push(Token::Text(text.get(start..end).unwrap_or("")));
                at = end + quote;
            }
            _ if byte == b'_' || byte.is_ascii_alphanumeric() || byte >= 0x80 => {
                let word = |b: &u8| *b == b'_' || b.is_ascii_alphanumeric() || *b >= 0x80;
                let end = at + bytes[at..].iter().take_while(|b| word(b)).count();
                // The prefix of a string is no word.
                let is_prefix = end - at <= 2 && matches!(bytes.get(end), Some(b'"' | b'\''));
                if !is_prefix {
                    tokens.push(Token::Word(&text[at..end], at == 0 || bytes[at - 1] == b'\n'));
                }
                at = end;
            }
            _ => {
                if !byte.is_ascii_whitespace() {
                    tokens.push(Token::Sign(char::from(byte)));
                }
                at += 1;
            }
        }
    }
    tokens
}

/// What follows `def function` up to the next word at the start of a line.
fn function_body<'t, 'a>(tokens: &'t [Token<'a>], function: &str) -> Option<&'t [Token<'a>]> {
    let start = tokens.windows(2).position(
        |pair| matches!(pair, [Token::Word("def", _), Token::Word(name, _)] if *name == function),
    )? + 2;
    let length = tokens[start..].iter().position(|token| matches!(token, Token::Word(_, true)));
    Some(&tokens[start..length.map_or(tokens.len(), |length| start + length)])
}

/// The keys of the dicts that a function returns; `None` if they cannot be told.
fn returned_fields<'a>(body: &[Token<'a>]) -> Option<Vec<&'a str>> {
    let mut fields = Vec::new();
    let mut returns = 0;
    for (at, _) in body.iter().enumerate().filter(|(_, token)| matches!(token, Token::Word("return", _))) {
        returns += 1;
        match body.get(at + 1..)? {
            rest if is_dict(rest) => fields.extend(keys(rest)?),
            [Token::Word(variable, _), ..] => fields.extend(variable_fields(body, variable)?),
            _ => return None,
        }
    }
    (returns > 0).then_some(fields)
}

fn is_dict(tokens: &[Token<'_>]) -> bool {
    matches!(tokens, [Token::Sign('{'), ..] | [Token::Word("dict", _), Token::Sign('('), ..])
}

/// What is put into a variable: by the dict it is made of, and by `variable["key"] = …`.
fn variable_fields<'a>(body: &[Token<'a>], variable: &str) -> Option<Vec<&'a str>> {
    let mut fields = Vec::new();
    let mut made = false;
    for (at, _) in body
        .iter()
        .enumerate()
        .filter(|(_, token)| matches!(token, Token::Word(name, _) if *name == variable))
    {
        match &body[at + 1..] {
            [Token::Sign('='), rest @ ..] if is_dict(rest) => {
                made = true;
                fields.extend(keys(rest)?);
            }
            [Token::Sign('['), Token::Text(key), Token::Sign(']'), Token::Sign('='), next, ..]
                if *next != Token::Sign('=') =>
            {
                fields.push(*key);
            }
            [Token::Sign('.'), Token::Word("update" | "setdefault", _), ..] => return None,
            _ => {}
        }
    }
    made.then_some(fields)
}

/// The keys of a `{…}` or `dict(…)` that starts here.
fn keys<'a>(tokens: &[Token<'a>]) -> Option<Vec<&'a str>> {
    let braces = tokens.first() == Some(&Token::Sign('{'));
    let tokens = if braces { tokens } else { &tokens[1..] };
    let mut keys = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Sign('{' | '[' | '(') => depth += 1,
            Token::Sign('}' | ']' | ')') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(keys);
        }
        let starts_entry = depth == 1 && matches!(token, Token::Sign('{' | '(' | ','));
        if !starts_entry {
            continue;
        }
        match (&tokens[at + 1..], braces) {
            ([Token::Text(key), Token::Sign(':'), ..], true)
            | ([Token::Word(key, _), Token::Sign('='), ..], false) => keys.push(*key),
            ([Token::Sign('}' | ')'), ..], _) => {}
            // `**rest`, a computed key, a comprehension.
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Option<Vec<&str>> {
        let tokens = tokens(text);
        returned_fields(function_body(&tokens, "sample_loader").unwrap())
    }

    #[test]
    fn our_own_loader_returns_known_fields() {
        let found = fields(SAMPLE_LOADER).unwrap();
        assert!(found.iter().all(|field| FIELDS.contains(field)), "{found:?}");
        assert!(NEEDED.iter().all(|field| found.contains(field)), "{found:?}");
    }

    #[test]
    fn the_ways_to_return_a_dict() {
        let text = "import json\ndef sample_loader(raw: dict) -> dict:\n    '''a \"b\": {'''\n    # return {\"c\": 1}\n    \
                    out = dict(images=f(x=[1, {'y': 2}]), prompts=r\"a\",)\n    out['captions'] = raw[f'{k}']\n    \
                    if out['z'] == 1: pass\n    return out\n\ndef other():\n    return {'no': 1}\n";
        assert_eq!(fields(text).unwrap(), ["images", "prompts", "captions"]);
        assert_eq!(
            fields("def sample_loader(r):\n  return {'a': {'b': 1}, \"c\": [d for d in e]}").unwrap(),
            ["a", "c"]
        );
        assert_eq!(fields("def sample_loader(r):\n  return {**r, 'a': 1}"), None);
        assert_eq!(fields("def sample_loader(r):\n  return make(r)"), None);
        assert_eq!(fields("def sample_loader(r):\n  return {'a': '\\"), None);
        assert!(function_body(&tokens("def x(): pass"), "sample_loader").is_none());
    }
}
