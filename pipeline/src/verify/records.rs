//! No record is lost: what was read was accepted or rejected.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use packd_sinks::Reject;

use super::context::Context;
use super::fault::FaultKind;
use crate::report::Report;

const REJECTS: &str = "rejects.jsonl";

pub(super) fn check(context: &Context<'_>) {
    if context.checksums.is_none() {
        return;
    }
    let report = match Report::read(&context.layout.folder) {
        Ok(report) => report,
        Err(error) => return context.warn(format!("records read and packed are not compared: {error}")),
    };
    let records = &report.records;
    let fault = |file: &str, detail: String| context.faults.add(FaultKind::Records, file, detail);
    let rejected = records.rejected_total();
    if records.read != records.accepted + rejected {
        let detail = format!(
            "{} records were read, {} accepted and {rejected} rejected",
            records.read, records.accepted
        );
        fault(Report::NAME, detail);
    }
    if context.is_intact(REJECTS) {
        match count_rejects(&context.layout.folder.join(REJECTS)) {
            Ok(lines) if lines != rejected => {
                fault(REJECTS, format!("it names {lines} records; {rejected} were rejected"));
            }
            Ok(_) => {}
            Err(error) => fault(REJECTS, error),
        }
    }
    let packed = context.totals().sub_samples;
    let complete = context.packs().unread.is_empty();
    if complete && packed != records.accepted && !context.faults.any() {
        fault(Report::NAME, format!("{} records were accepted, the shards hold {packed}", records.accepted));
    }
}

fn count_rejects(path: &Path) -> Result<u64, String> {
    let file = File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let mut lines = 0;
    for line in BufReader::new(file).lines() {
        lines += 1;
        let line = line.map_err(|error| format!("line {lines} cannot be read: {error}"))?;
        serde_json::from_str::<Reject>(&line)
            .map_err(|error| format!("line {lines} is no reject: {error}"))?;
    }
    Ok(lines)
}
