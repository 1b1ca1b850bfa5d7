//! How far two models agree at a point, for people.

use super::say;
use crate::agreement::Point;

pub(super) fn print(point: &Point) {
    let found = match &point.agreement {
        Some(it) => format!(
            "cosine {:.9}, relative error {:.2e}, largest difference {:.2e}",
            it.cosine, it.relative_error, it.max_abs
        ),
        None => "not compared".into(),
    };
    let allowed = match point.threshold.relative_error {
        0.0 => "the same to the bit".into(),
        _ => point.threshold.to_string(),
    };
    say!("  {}: {found}; allowed: {allowed}", point.name);
    if let Some(hint) = &point.hint {
        say!("    {hint}");
    }
}
