//! Packing: the patterns alone from a histogram, and the whole stage from lengths to ordered packs
//! beside its floor, a counting sort of the same 16-byte records by length.
//!
//! `packing [--large] [--runs N]`: `--large` adds the whole stage at 1e8 samples (3 GB of memory).

use std::{f64::consts::TAU, hint::black_box, process::ExitCode, time::Duration};

use packd_benches::{Table, best_of, milliseconds, peak_of, processor_time, ratio, scaled};
use packd_stages::bin_pack::{Algorithm, Item, Limits, PackError, Packing, Patterns, pack};

const SEQ_LEN: u32 = 8192;
const SEED: u64 = 42;

/// How lengths are distributed over 1 to [`SEQ_LEN`].
#[derive(Clone, Copy)]
enum Lengths {
    /// ⌊exp N(6.5, 1)⌋, as conversations are.
    Lognormal,
    /// Every length equally often.
    Uniform,
    /// Density 1 / length^1.5: most are short, the longest ones hold most tokens.
    LongTail,
}

impl Lengths {
    const ALL: [Self; 3] = [Self::Lognormal, Self::Uniform, Self::LongTail];

    fn name(self) -> &'static str {
        match self {
            Self::Lognormal => "lognormal",
            Self::Uniform => "uniform",
            Self::LongTail => "long tail",
        }
    }

    fn draw(self, random: &mut Random) -> u32 {
        let longest = f64::from(SEQ_LEN);
        let length = match self {
            Self::Lognormal => (6.5 + random.normal()).exp(),
            Self::Uniform => 1.0 + random.unit() * longest,
            // The inverse of the distribution function 1 - length^-0.5, cut at the longest.
            Self::LongTail => (1.0 - random.unit() * (1.0 - longest.powf(-0.5))).powf(-2.0),
        };
        length.floor().clamp(1.0, longest) as u32
    }
}

/// Xorshift64 (Marsaglia 2003), good enough for lengths.
struct Random(u64);

impl Random {
    /// From 0 up to, but without, 1.
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (TAU * self.unit()).cos()
    }
}

fn items(lengths: Lengths, n: u64) -> Vec<Item> {
    let mut random = Random(SEED);
    (0..n).map(|_| Item { length: lengths.draw(&mut random), images: 1, patches: 729, stored: 40 }).collect()
}

/// The histogram of `n` samples: drawn, up to ten million; beyond, those scaled, with the noise that
/// the counts of more samples have.
fn histogram(lengths: Lengths, n: u64) -> Vec<u64> {
    let mut random = Random(SEED);
    let drawn = n.min(10_000_000);
    let mut histogram = vec![0u64; SEQ_LEN as usize + 1];
    (0..drawn).for_each(|_| histogram[lengths.draw(&mut random) as usize] += 1);
    if n > drawn {
        for count in &mut histogram {
            let mean = (*count * (n / drawn)) as f64;
            *count = (mean + mean.sqrt() * random.normal()).max(0.0).round() as u64;
        }
    }
    histogram
}

/// The floor: what sorting the records by length takes at least.
fn counting_sort(items: &[Item]) -> Vec<Item> {
    let mut cursors = vec![0usize; SEQ_LEN as usize + 1];
    items.iter().for_each(|item| cursors[item.length as usize] += 1);
    let mut start = 0;
    for cursor in &mut cursors {
        start += std::mem::replace(cursor, start);
    }
    let mut sorted = vec![Item::default(); items.len()];
    for item in items {
        let cursor = &mut cursors[item.length as usize];
        sorted[*cursor] = *item;
        *cursor += 1;
    }
    sorted
}

/// The whole stage: packs, and every member of every pack read in the final order.
fn whole_stage(items: &[Item], limits: &Limits, algorithm: Algorithm) -> Result<Packing, PackError> {
    let packing = pack(items, limits, algorithm, SEED)?;
    let mut sum = 0u64;
    for members in packing.iter() {
        members.iter().for_each(|&ordinal| sum = sum.wrapping_mul(31).wrapping_add(ordinal.into()));
    }
    black_box(sum);
    Ok(packing)
}

fn patterns_alone(runs: usize) -> Result<Table, PackError> {
    let limits = Limits::new(SEQ_LEN);
    let title = format!("Patterns alone, from a histogram of lengths (seq_len {SEQ_LEN})");
    let mut table = Table::new(&title, ["lengths", "samples", "time", "bins", "patterns", "fill"]);
    for lengths in Lengths::ALL {
        for exponent in 5..=10 {
            let histogram = histogram(lengths, 10u64.pow(exponent));
            let (time, patterns) = best_of(runs, || Patterns::best_fit(&histogram, &limits));
            let patterns = patterns?;
            let tokens: u64 = histogram.iter().zip(0u64..).map(|(&count, length)| count * length).sum();
            let fill = tokens as f64 / (patterns.bins() * u64::from(SEQ_LEN)) as f64;
            table.row([
                lengths.name().to_owned(),
                format!("1e{exponent}"),
                milliseconds(time),
                scaled(patterns.bins()),
                scaled(patterns.len() as u64),
                format!("{:.4} %", 100.0 * fill),
            ]);
        }
    }
    Ok(table)
}

fn stage(runs: usize, largest_exponent: u32) -> Result<Table, PackError> {
    let limits = Limits::new(SEQ_LEN);
    let title = format!(
        "Whole stage, lengths to ordered packs (seq_len {SEQ_LEN}); floor: counting sort of the same 16-byte \
         records; processor time of one thread, both with the memory they return"
    );
    let columns =
        ["lengths", "samples", "floor", "time", "ratio", "bins", "patterns", "fill", "bytes/sample"];
    let mut table = Table::new(&title, columns);
    for lengths in Lengths::ALL {
        for exponent in 5..=largest_exponent {
            let items = items(lengths, 10u64.pow(exponent));
            let name = lengths.name();
            table.row(stage_row(name, &items, &limits, Algorithm::BestFitDecreasing, runs)?);
            if exponent == 6 {
                let name = format!("{name}, first-fit");
                table.row(stage_row(&name, &items, &limits, Algorithm::FirstFitDecreasing, runs)?);
                let name = format!("{}, 8 images", lengths.name());
                let limited = Limits { max_images: Some(8), ..limits };
                table.row(stage_row(&name, &items, &limited, Algorithm::BestFitDecreasing, runs)?);
            }
        }
    }
    Ok(table)
}

fn stage_row(
    name: &str,
    items: &[Item],
    limits: &Limits,
    algorithm: Algorithm,
    runs: usize,
) -> Result<[String; 9], PackError> {
    // Floor and stage in turn, so that what disturbs one disturbs the other.
    let (mut floor, mut time) = (Duration::MAX, Duration::MAX);
    for _ in 0..runs {
        floor = floor.min(processor_time(|| counting_sort(items)).0);
        time = time.min(processor_time(|| whole_stage(items, limits, algorithm)).0);
    }
    let (peak, packing) = peak_of(|| whole_stage(items, limits, algorithm));
    let quality = packing?.quality().clone();
    let bytes = |peak: u64| format!("{:.1}", (peak + size_of_val(items) as u64) as f64 / items.len() as f64);
    Ok([
        name.to_owned(),
        scaled(quality.samples),
        milliseconds(floor),
        milliseconds(time),
        ratio(time, floor),
        scaled(quality.bins),
        scaled(quality.patterns),
        format!("{:.4} %", 100.0 * quality.fill),
        // Less memory comes from what the process already holds, and does not show.
        peak.filter(|_| items.len() >= 10_000_000).map_or_else(|| "-".to_owned(), bytes),
    ])
}

fn main() -> ExitCode {
    let (mut largest_exponent, mut runs) = (7, 5);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let count = if argument == "--runs" { arguments.next() } else { None };
        match (argument.as_str(), count.and_then(|count| count.parse().ok())) {
            ("--large", _) => largest_exponent = 8,
            ("--runs", Some(count)) => runs = count,
            _ => {
                eprintln!("usage: packing [--large] [--runs N]");
                return ExitCode::from(64);
            }
        }
    }
    match patterns_alone(runs).and_then(|patterns| Ok((patterns, stage(runs, largest_exponent)?))) {
        Ok((patterns, stage)) => {
            println!("{patterns}\n{stage}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("packing: {error}");
            ExitCode::FAILURE
        }
    }
}
