//! Log lines, errors and colours.

use std::io::IsTerminal;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

use super::{Color, Global, LogFormat};

/// Logs to stderr: warnings by default, `PACKD_LOG` overrides.
pub(crate) fn start_logging(global: &Global) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (_, 0) => "packd=info,warn",
        (_, 1) => "packd=debug,info",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("PACKD_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match global.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.without_time().with_ansi(use_color(global, &std::io::stderr())).init(),
    }
}

/// Whether to colour what goes to `stream`.
pub(crate) fn use_color(global: &Global, stream: &impl IsTerminal) -> bool {
    match global.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    }
}

/// One line `error: what`, its causes, and `help: what to do`.
pub(crate) fn print_error(error: &packd::Error, global: &Global) -> ExitCode {
    let (red, cyan, reset) = match use_color(global, &std::io::stderr()) {
        true => ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m"),
        false => ("", "", ""),
    };
    eprintln!("{red}error{reset}: {error}");
    let mut cause = std::error::Error::source(error);
    let mut said = error.to_string();
    while let Some(inner) = cause {
        let text = inner.to_string();
        // Messages that already hold their cause are not repeated.
        if !said.contains(&text) {
            eprintln!("  because: {text}");
        }
        said = text;
        cause = inner.source();
    }
    if let Some(help) = error.help() {
        eprintln!("{cyan}help{reset}: {help}");
    }
    ExitCode::from(error.exit_code())
}

/// A value as JSON, for machines.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), packd::Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| packd::Error::Internal { stage: "json", message: error.to_string() })?;
    println!("{text}");
    Ok(())
}

/// `12345678` as `12,345,678`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes as people say them.
pub(crate) fn bytes(bytes: u64) -> String {
    let (unit, divisor) = match bytes {
        0..1_000 => return format!("{bytes} B"),
        1_000..1_000_000 => ("KB", 1e3),
        1_000_000..1_000_000_000 => ("MB", 1e6),
        _ => ("GB", 1e9),
    };
    format!("{:.1} {unit}", bytes as f64 / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_700_000_000), "1.7 GB");
    }
}
