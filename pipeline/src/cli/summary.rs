//! The summary of a finished run.

use packd::Report;

use super::Global;
use super::output::{bytes, thousands, use_color};

/// Prints what a newcomer needs: what was read, what became of it, what to do next.
pub(crate) fn print(report: &Report, global: &Global) {
    let bold = |text: &str| match use_color(global, &std::io::stdout()) {
        true => format!("\x1b[1m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let output = &report.output;
    let records = &report.records;
    let packing = &report.packing;
    if report.already_done {
        println!("{}", bold("this output was complete already; nothing was done"));
    }
    println!(
        "{}  {} records: {} packed, {} rejected",
        bold("input "),
        thousands(records.read),
        thousands(records.accepted),
        thousands(records.rejected_total())
    );
    for (reason, count) in &records.rejected {
        let example = report.reject_examples.iter().find(|example| example.reason == *reason);
        let example =
            example.map_or_else(String::new, |example| format!("{}: {}", example.place, example.detail));
        println!("          {:>7}  {reason}  ({example})", thousands(*count));
    }
    println!(
        "{}  {} in samples ({} text, {} image), {} images",
        bold("tokens"),
        thousands(records.tokens),
        thousands(records.text_tokens),
        thousands(records.image_tokens),
        thousands(records.images)
    );
    println!(
        "{}  {} of {} tokens, {:.2} % full, {:.1} samples each; no packing has fewer than {}",
        bold("packs "),
        thousands(packing.bins),
        thousands(packing.seq_len),
        100.0 * packing.fill,
        packing.samples_per_bin[1],
        thousands(packing.strong_lower_bound.max(packing.lower_bound))
    );
    println!(
        "{}  {} in {} shard{}{}",
        bold("output"),
        bytes(output.bytes),
        output.shards,
        if output.shards == 1 { "" } else { "s" },
        if output.val > 0 {
            format!("; {} packs train, {} val", output.train, output.val)
        } else {
            String::new()
        }
    );
    if !report.already_done {
        let s = &report.seconds;
        println!(
            "{}  {:.1} s (tokenizer {:.1}, measure {:.1}, pack {:.1}, write {:.1}, index {:.1})",
            bold("time  "),
            s.total,
            s.load,
            s.measure,
            s.pack,
            s.write,
            s.finalize
        );
    }
    let storage = &report.storage;
    if storage.requests > 0 && !report.already_done {
        println!(
            "{}  {} requests ({} repeated), {} received, {} sent",
            bold("store "),
            thousands(storage.requests),
            thousands(storage.refused + storage.failed),
            bytes(storage.bytes_received),
            bytes(storage.bytes_sent)
        );
    }
    for warning in &report.warnings {
        println!("{}    {warning}", bold("note"));
    }
    if let Some(folder) = report.folder.as_deref() {
        let folder = folder.display();
        if records.rejected_total() > 0 {
            println!("{}    {folder}/rejects.jsonl names every rejected record", bold("next"));
        }
        println!("{}    packd verify {folder}; train with {folder}/dataset.yaml", bold("next"));
    }
    if report.too_many_rejects {
        println!("{}   more is missing than `max_reject_rate` allows", bold("error"));
    }
}
