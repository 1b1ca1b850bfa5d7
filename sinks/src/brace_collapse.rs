//! Brace expressions over runs of file names, as Energon's `split.yaml` holds them.

/// Collapses runs of names that count up in one number of fixed width: `a-000.tar`, `a-001.tar` become
/// `a-{000..001}.tar`. Expanded in order, the result is the input.
///
/// Gives what Energon's own `collapse(…, keep_order=True)` gives, except where that would not expand to
/// its input again (names of which another number changes its number of leading zeros).
pub fn brace_collapse(names: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    let mut start = 0;
    while start < names.len() {
        let first = split_numbers(names[start]);
        let mut slot = None;
        let mut last = first.clone();
        let mut end = start + 1;
        while end < names.len() {
            let next = split_numbers(names[end]);
            match counted_slot(&last, &next) {
                Some(s) if slot.is_none_or(|slot| slot == s) => slot = Some(s),
                _ => break,
            }
            last = next;
            end += 1;
        }
        out.push(match slot {
            None => names[start].to_owned(),
            Some(slot) => {
                let piece = |(i, piece): (usize, &&str)| match i == slot {
                    true => format!("{{{piece}..{}}}", last[slot]),
                    false => piece.to_string(),
                };
                first.iter().enumerate().map(piece).collect()
            }
        });
        start = end;
    }
    out
}

/// Cuts a name into text, digits, text, digits, …, text: digits stand at odd places.
fn split_numbers(name: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = name;
    let mut digits = false;
    loop {
        let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (piece, tail) = rest.split_at(end);
        pieces.push(piece);
        rest = tail;
        digits = !digits;
        if rest.is_empty() {
            return pieces;
        }
    }
}

/// The only piece in which `next` differs from `last`, if it is a number of the same width, one higher.
fn counted_slot(last: &[&str], next: &[&str]) -> Option<usize> {
    if last.len() != next.len() {
        return None;
    }
    let mut differing = (0..last.len()).filter(|&i| last[i] != next[i]);
    let slot = differing.next()?;
    let counts = slot % 2 == 1 && is_successor(last[slot], next[slot]);
    (counts && differing.next().is_none()).then_some(slot)
}

/// True when the decimal numbers have one width and `b` is `a` + 1, however long they are.
fn is_successor(a: &str, b: &str) -> bool {
    let kept = a.trim_end_matches('9');
    let Some(digit) = kept.bytes().last() else { return false };
    let mut successor = kept.as_bytes().to_vec();
    successor[kept.len() - 1] = digit + 1;
    successor.resize(a.len(), b'0');
    successor == b.as_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn collapses_as_energon_does() {
        for (names, want) in [
            (&["s-000000.tar", "s-000001.tar", "s-000002.tar"][..], &["s-{000000..000002}.tar"][..]),
            (&["s-0.tar"], &["s-0.tar"]),
            (&["s-000000.tar", "s-000002.tar"], &["s-000000.tar", "s-000002.tar"]),
            (&["s-8.tar", "s-9.tar", "s-10.tar"], &["s-{8..9}.tar", "s-10.tar"]),
            (&["a1/s0.tar", "a1/s1.tar", "a2/s0.tar", "a2/s1.tar"], &["a1/s{0..1}.tar", "a2/s{0..1}.tar"]),
            (&["a1s0", "a2s0", "a2s1"], &["a{1..2}s0", "a2s1"]),
            (&["b", "a1", "a2", "b1"], &["b", "a{1..2}", "b1"]),
            (&["a09", "a10", "a11"], &["a{09..11}"]),
            (
                &["99999999999999999999999999999999999999990", "99999999999999999999999999999999999999991"],
                &["{99999999999999999999999999999999999999990..99999999999999999999999999999999999999991}"],
            ),
            (&["7a", "8a"], &["{7..8}a"]),
            (&["a1b01", "a2b1"], &["a1b01", "a2b1"]),
            (&[], &[]),
        ] {
            assert_eq!(brace_collapse(names), want, "{names:?}");
        }
    }

    /// What `braceexpand` does with the expressions written here.
    fn expand(expression: &str) -> Vec<String> {
        let Some((before, rest)) = expression.split_once('{') else { return vec![expression.into()] };
        let (range, after) = rest.split_once('}').unwrap();
        let (from, to) = range.split_once("..").unwrap();
        let numbers = from.parse::<u64>().unwrap()..=to.parse().unwrap();
        numbers.map(|n| format!("{before}{n:0width$}{after}", width = from.len())).collect()
    }

    proptest! {
        #[test]
        fn expands_to_its_input(names in prop::collection::vec("[ab]?[0-2]{1,3}[-.]?[0-1]{0,2}", 0..30)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let expanded: Vec<String> = brace_collapse(&names).iter().flat_map(|e| expand(e)).collect();
            prop_assert_eq!(expanded, names);
        }
    }
}
