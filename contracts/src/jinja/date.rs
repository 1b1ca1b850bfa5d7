//! The fixed date behind `strftime_now`, so that a length does not depend on the day.

use std::fmt::Write;
use std::str::FromStr;

use minijinja::{Error, ErrorKind};
use serde::Serialize;

/// A day of the Gregorian calendar; the time of day is midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateDate {
    year: i32,
    month: u32,
    day: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl TemplateDate {
    /// The day that the Llama 3 templates print when they cannot ask for the date.
    pub const DEFAULT: TemplateDate = TemplateDate { year: 2024, month: 7, day: 26 };

    /// A day, if there is one.
    pub fn new(year: i32, month: u32, day: u32) -> Option<Self> {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        ((1..=9999).contains(&year) && (1..=days).contains(&day)).then_some(Self { year, month, day })
    }

    /// Formats as C's `strftime` in the English locale.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        let mut text = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let mut directive = chars.next().unwrap_or('%');
            let unpadded = directive == '-';
            if unpadded {
                directive = chars.next().unwrap_or('-');
            }
            let start = text.len();
            self.write(&mut text, directive).map_err(|_| {
                Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know %{directive}"))
            })?;
            if unpadded {
                let number = text.split_off(start);
                let trimmed = number.trim_start_matches(['0', ' ']);
                text.push_str(if trimmed.is_empty() { "0" } else { trimmed });
            }
        }
        Ok(text)
    }

    fn write(self, out: &mut String, directive: char) -> std::fmt::Result {
        let (year, day) = (self.year, self.day);
        let month_name = MONTHS[self.month as usize - 1];
        let weekday = self.weekday();
        let weekday_name = WEEKDAYS[weekday as usize];
        match directive {
            'Y' => write!(out, "{year}"),
            'y' => write!(out, "{:02}", year % 100),
            'm' => write!(out, "{:02}", self.month),
            'd' => write!(out, "{day:02}"),
            'e' => write!(out, "{day:>2}"),
            'B' => out.write_str(month_name),
            'b' | 'h' => out.write_str(&month_name[..3]),
            'A' => out.write_str(weekday_name),
            'a' => out.write_str(&weekday_name[..3]),
            'w' => write!(out, "{weekday}"),
            'u' => write!(out, "{}", if weekday == 0 { 7 } else { weekday }),
            'j' => write!(out, "{:03}", self.day_of_year()),
            'H' | 'M' | 'S' => out.write_str("00"),
            'I' => out.write_str("12"),
            'p' => out.write_str("AM"),
            'f' => out.write_str("000000"),
            'Z' | 'z' => Ok(()),
            'F' => write!(out, "{year}-{:02}-{day:02}", self.month),
            'D' | 'x' => write!(out, "{:02}/{day:02}/{:02}", self.month, year % 100),
            'T' | 'X' => out.write_str("00:00:00"),
            'R' => out.write_str("00:00"),
            'c' => write!(out, "{} {} {day:>2} 00:00:00 {year}", &weekday_name[..3], &month_name[..3]),
            'n' => out.write_str("\n"),
            't' => out.write_str("\t"),
            '%' => out.write_str("%"),
            _ => Err(std::fmt::Error),
        }
    }

    fn day_of_year(self) -> u32 {
        let before = |month| (28..=31).rev().find(|&day| Self::new(self.year, month, day).is_some());
        (1..self.month).filter_map(before).sum::<u32>() + self.day
    }

    /// 0 for Sunday (Sakamoto's method).
    fn weekday(self) -> i32 {
        const SHIFT: [i32; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
        let year = if self.month < 3 { self.year - 1 } else { self.year };
        (year + year / 4 - year / 100 + year / 400 + SHIFT[self.month as usize - 1] + self.day as i32) % 7
    }
}

impl std::fmt::Display for TemplateDate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl FromStr for TemplateDate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is not a date; write it as 2024-07-26");
        let parts: Vec<u32> =
            text.split('-').map(|part| part.parse().map_err(|_| refused())).collect::<Result<_, _>>()?;
        let [year, month, day] = parts[..] else { return Err(refused()) };
        i32::try_from(year).ok().and_then(|year| Self::new(year, month, day)).ok_or_else(refused)
    }
}

impl Serialize for TemplateDate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
