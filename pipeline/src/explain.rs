//! `packd explain`: the token arithmetic of one record, line by line.

use packd_config::Config;
use packd_contracts::{ExplainLine, TokenCount, Verdict};
use packd_sources::{ReadRange, RecordReader};
use serde::Serialize;

use crate::error::Error;
use crate::job::{Tools, stores};

/// Which record of an input to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordChoice {
    /// The one on this line, from 1.
    Line(u64),
    /// The first with this id.
    Id(String),
}

/// What became of one record, and how its length comes about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The input as configured.
    pub input: String,
    /// The record's line.
    pub line: u64,
    /// The record's id.
    pub id: Option<String>,
    /// Why the record would be rejected, if it would be.
    pub verdict: Option<Verdict>,
    /// The count, if there is one.
    pub count: Option<TokenCount>,
    /// The arithmetic.
    pub lines: Vec<ExplainLine>,
}

/// Explains one record of the configured inputs; `None` when no record is the chosen one.
///
/// # Errors
/// The configuration or an input cannot be used.
pub async fn explain(config: &Config, choice: &RecordChoice) -> Result<Option<Explanation>, Error> {
    if config.input.is_empty() {
        return Err(Error::NotSet { key: "input", help: "name the file that holds the record" });
    }
    let tools = Tools::new(config, stores(config)?)?;
    tools.load()?;
    let max_record = usize::try_from(config.max_line_bytes.0).unwrap_or(usize::MAX);
    for (source, input) in tools.inputs.iter().enumerate() {
        let mut reader = RecordReader::open(input, source, ReadRange::default(), max_record).await?;
        while let Some(block) = reader.next_block().await? {
            for record in &block.records {
                let skip = matches!(choice, RecordChoice::Line(line) if *line != record.line);
                if skip {
                    continue;
                }
                let validation = tools.validator.validate(block.bytes_of(record), source)?;
                let chosen = match choice {
                    RecordChoice::Line(_) => true,
                    RecordChoice::Id(id) => validation.id.as_ref() == Some(id),
                };
                if chosen {
                    return Ok(Some(explain_one(&tools, input.name.clone(), record.line, validation)));
                }
            }
        }
    }
    Ok(None)
}

fn explain_one(tools: &Tools, input: String, line: u64, validation: packd_stages::Validation) -> Explanation {
    let mut explanation =
        Explanation { input, line, id: validation.id, verdict: None, count: None, lines: Vec::new() };
    let valid = match validation.outcome {
        Ok(valid) => valid,
        Err(verdict) => return Explanation { verdict: Some(verdict), ..explanation },
    };
    match tools.counter.explain(&valid.sample, &valid.sizes) {
        Ok(lines) => explanation.lines = lines,
        Err(verdict) => explanation.verdict = Some(verdict),
    }
    match tools.counter.count(&valid.sample, &valid.sizes) {
        Ok(count) => explanation.count = Some(count),
        Err(verdict) => explanation.verdict = Some(verdict),
    }
    explanation
}
