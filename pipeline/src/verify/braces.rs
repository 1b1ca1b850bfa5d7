//! Brace expressions of `split.yaml`, as Python's `braceexpand` reads them.

/// More names than this are a mistake or an attack.
const MAX_NAMES: usize = 2_000_000;

/// Every name of an expression; `None` for more than can be meant.
pub(super) fn expand(expression: &str) -> Option<Vec<String>> {
    let Some((before, inside, after)) = split_first(expression) else {
        return Some(vec![expression.to_owned()]);
    };
    let mut middles = Vec::new();
    match range(inside) {
        Some(numbers) => middles = numbers?,
        None => {
            let pieces = split_commas(inside);
            if pieces.len() == 1 {
                // `{a}` is text.
                let tails = expand(after)?;
                return Some(tails.into_iter().map(|tail| format!("{before}{{{inside}}}{tail}")).collect());
            }
            for piece in pieces {
                middles.extend(expand(piece)?);
            }
        }
    }
    let tails = expand(after)?;
    if middles.len().checked_mul(tails.len())? > MAX_NAMES {
        return None;
    }
    let join = |middle: &String, tail: &String| format!("{before}{middle}{tail}");
    Some(middles.iter().flat_map(|middle| tails.iter().map(move |tail| join(middle, tail))).collect())
}

/// Text before the first pair of braces, what is inside, and what follows.
fn split_first(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('{')?;
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..open], &text[open + 1..at], &text[at + 1..]));
        }
    }
    None
}

fn split_commas(text: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// `a..b` as numbers with the width of the wider one; the inner `None` for too many.
fn range(text: &str) -> Option<Option<Vec<String>>> {
    let (from, to) = text.split_once("..")?;
    let number =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (first, last) = (number(from)?, number(to)?);
    let padded = [from, to].iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let width = if padded { from.len().max(to.len()) } else { 0 };
    if first.abs_diff(last) >= MAX_NAMES as u64 {
        return Some(None);
    }
    let name = |number: u64| format!("{number:0width$}");
    let names = if first <= last {
        (first..=last).map(name).collect()
    } else {
        (last..=first).rev().map(name).collect()
    };
    Some(Some(names))
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn expands_as_python_does() {
        for (expression, names) in [
            ("a.tar", &["a.tar"][..]),
            ("a-{008..010}.tar", &["a-008.tar", "a-009.tar", "a-010.tar"]),
            ("a{9..10}", &["a9", "a10"]),
            ("{a,b{1..2}}x", &["ax", "b1x", "b2x"]),
            ("a{1..2}{x,y}", &["a1x", "a1y", "a2x", "a2y"]),
            ("{a}", &["{a}"]),
            ("a{", &["a{"]),
        ] {
            assert_eq!(expand(expression).unwrap(), names, "{expression}");
        }
        assert_eq!(expand("{0..99999999999}"), None);
        assert_eq!(expand("{0..9999}{0..9999}"), None);
    }
}
