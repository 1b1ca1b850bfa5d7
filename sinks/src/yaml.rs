//! Just enough YAML to write Energon's small files: scalars that read back as the same text.

/// Words that YAML 1.1 (which Energon's reader speaks) reads as something else than text.
const NOT_TEXT: &[&str] = &["null", "true", "false", "yes", "no", "on", "off", "y", "n"];

/// `text` as a YAML scalar: plain where that is safe, in JSON's quotes elsewhere.
pub(crate) fn scalar(text: &str) -> String {
    let starts_plain =
        text.starts_with("./") || text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./{}".contains(c);
    if starts_plain && text.chars().all(plain) && !NOT_TEXT.contains(&text.to_ascii_lowercase().as_str()) {
        return text.into();
    }
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::scalar;

    #[test]
    fn plain_where_safe() {
        for plain in
            ["packd-{000000..000009}.tar", "./node_000/webdataset", "aiak_training_llm.data.multimodal"]
        {
            assert_eq!(scalar(plain), plain);
        }
        for (text, quoted) in
            [("7.4.1", r#""7.4.1""#), ("No", r#""No""#), ("a: b", r#""a: b""#), ("", r#""""#)]
        {
            assert_eq!(scalar(text), quoted);
        }
    }
}
