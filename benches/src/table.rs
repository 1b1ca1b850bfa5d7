//! Markdown tables.

use std::fmt;

/// A Markdown table with aligned columns: the first to the left, numbers to the right.
#[derive(Debug, Clone)]
pub struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<const N: usize>(title: &str, columns: [&str; N]) -> Self {
        Self { title: title.to_owned(), rows: vec![columns.map(str::to_owned).to_vec()] }
    }

    /// Adds a row, one cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.rows[0].len(), "a cell for each column");
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3))
            .collect();
        writeln!(f, "**{}**\n", self.title)?;
        for (index, row) in self.rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "| {cell:<width$} |")?,
                    _ => write!(f, " {cell:>width$} |")?,
                }
            }
            writeln!(f)?;
            if index == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    match column {
                        0 => write!(f, "| {:-<width$} |", "")?,
                        _ => write!(f, " {:-<rest$}: |", "", rest = width - 1)?,
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// A large count as people write it: `1e5` for powers of ten, thousands apart otherwise.
pub fn scaled(count: u64) -> String {
    let exponent = count.checked_ilog10().unwrap_or(0);
    if exponent >= 4 && count == 10u64.pow(exponent) {
        return format!("1e{exponent}");
    }
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Table, scaled};

    #[test]
    fn tables_are_markdown() {
        let mut table = Table::new("lengths", ["kind", "n"]);
        table.row(["uniform".to_owned(), scaled(1_234_567)]);
        let expected =
            "**lengths**\n\n| kind    |         n |\n| ------- | --------: |\n| uniform | 1,234,567 |\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn counts_are_readable() {
        assert_eq!([0, 999, 1000, 10_000, 10_001].map(scaled), ["0", "999", "1,000", "1e4", "10,001"]);
    }
}
