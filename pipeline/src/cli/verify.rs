//! `packd verify`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use packd::{Error, VerifyOptions, VerifyReport, exit};

use super::Global;
use super::output::{bytes, print_json, thousands, use_color};

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// Output folder of a run, or any folder of packed WebDataset shards
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Count again only this share of the packs, as 1% or 0.01; everything else is checked for all
    #[arg(long, value_name = "SHARE", default_value = "100%", value_parser = share)]
    sample: f64,
    /// Tokens that a pack may hold [default: what the run was made with]
    #[arg(long, short = 'L', value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    seq_len: Option<u32>,
    /// Count with another model folder
    #[arg(long, value_name = "DIR", visible_aliases = ["tokenizer", "image-processor"])]
    model: Option<PathBuf>,
    /// Count by another profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Count with another lower limit of the image processor, in pixels
    #[arg(long, value_name = "N")]
    min_pixels: Option<u64>,
    /// Count with another upper limit of the image processor, in pixels
    #[arg(long, value_name = "N")]
    max_pixels: Option<u64>,
    /// CPU threads [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// `1%`, `0.01`.
fn share(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse::<f64>(),
    };
    match number {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("write a share above 0 and at most 100%, as 1% or 0.01".into()),
    }
}

pub(crate) fn run(args: &VerifyArgs, global: &Global) -> Result<ExitCode, Error> {
    let report = packd::verify(&VerifyOptions {
        folder: args.dir.clone(),
        model: args.model.clone(),
        profile: args.profile.clone(),
        min_pixels: args.min_pixels,
        max_pixels: args.max_pixels,
        seq_len: args.seq_len,
        sample: args.sample,
        threads: args.threads,
    })?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&report, global);
    }
    Ok(ExitCode::from(if report.passed() { exit::OK } else { exit::FAULTS }))
}

fn print(report: &VerifyReport, global: &Global) {
    let colored = |code: &str, text: &str| match use_color(global, &std::io::stdout()) {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    for fault in &report.faults {
        println!("{} {fault}", colored("1;31", "fault"));
    }
    let hidden = report.fault_count - report.faults.len() as u64;
    if hidden > 0 {
        println!("… and {} more faults of these kinds", thousands(hidden));
    }
    if !global.quiet {
        for warning in &report.warnings {
            println!("{} {warning}", colored("1;33", "note "));
        }
        println!(
            "read   {} shards, {}: {} packed samples, {} sub-samples, {} images",
            thousands(report.shards),
            bytes(report.bytes),
            thousands(report.packs),
            thousands(report.sub_samples),
            thousands(report.images)
        );
        let fill = report.fill.map_or_else(String::new, |fill| format!(", {:.2} % full", 100.0 * fill));
        println!(
            "counted {} packed samples again as {} (images of {} to {} pixels); seq_len {}{fill}",
            thousands(report.recounted),
            report.profile,
            thousands(report.pixels[0]),
            thousands(report.pixels[1]),
            thousands(report.seq_len.into())
        );
    }
    if report.passed() {
        if !global.quiet {
            println!("{}", colored("1;32", "no faults"));
        }
    } else {
        let kinds: Vec<String> =
            report.fault_counts.iter().map(|(kind, count)| format!("{} {kind}", thousands(*count))).collect();
        println!(
            "{}: {}",
            colored("1;31", &format!("{} faults", thousands(report.fault_count))),
            kinds.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_in_both_spellings() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(share("100%"), Ok(1.0));
        for bad in ["0", "0%", "101%", "2", "x", "NaN"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
