//! The `{% generation %}` block of transformers: it only marks the tokens of the assistant.

use std::borrow::Cow;

/// Replaces the tags by those of a `with` block, which renders its body as it is and scopes
/// variables alike. Whitespace marks (`-`, `+`) stay.
pub(super) fn replace_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut replaced = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag_on) = rest.split_at(start);
        replaced.push_str(before);
        let Some((inner, after)) = tag_on["{%".len()..].split_once("%}") else {
            rest = tag_on;
            break;
        };
        let tag = &tag_on[..tag_on.len() - after.len()];
        match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => replaced.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => replaced.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => replaced.push_str(tag),
        }
        rest = after;
    }
    replaced.push_str(rest);
    Cow::Owned(replaced)
}
