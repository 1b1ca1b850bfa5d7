//! Sizes with units, as people write them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes; reads and prints `64MiB`, `3GB`, `512`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Decimal units first: a printed size uses the largest unit that divides it.
const UNITS: [(&str, u64); 9] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        let factor = match unit {
            "" => Some(1),
            _ => UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| *factor),
        };
        let help =
            || format!("{text:?} is not a size; write bytes, or a number with KB, MB, GB, KiB, MiB, GiB");
        let factor = factor.ok_or_else(help)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(help);
        }
        let bytes = number.parse::<f64>().map_err(|_| help())? * factor as f64;
        if bytes.is_finite() && bytes < 9e18 { Ok(Self(bytes as u64)) } else { Err(help()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = UNITS
            .iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Number(bytes) => Ok(Self(bytes)),
            Raw::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl schemars::JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "bytes, as a number or with a unit: 512, 64MiB, 3GB",
            "type": ["integer", "string"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print_the_same() {
        for (text, bytes, printed) in [
            ("3GB", 3_000_000_000, "3GB"),
            ("64MiB", 64 << 20, "64MiB"),
            ("1.5 gb", 1_500_000_000, "1500MB"),
            ("4096", 4096, "4KiB"),
            ("0", 0, "0B"),
            ("7", 7, "7B"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string(), printed);
            assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        }
        for bad in ["", "GB", "3 parsecs", "-1", "99999999999999TB", "1e999"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}
