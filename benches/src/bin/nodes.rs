//! One packing over many nodes, from synthetic histograms: what a node computes and reads.
//!
//! `nodes [NODES SAMPLES]`, by default 1,000 nodes with 10^10 samples together.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Instant;

use packd_benches::{Table, milliseconds, peak_of, scaled};
use packd_stages::bin_pack::{Algorithm, GlobalPacking, Limits, PackError};

const SEQ_LEN: u32 = 8192;
const SEED: u64 = 42;
/// Packs of one shard.
const SHARD: u64 = 10_000;
/// Bytes of a sample in a node's sorted file.
const ENTRY: u64 = 48;

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let (nodes, samples) = match numbers[..] {
        [nodes, samples] => (nodes, samples),
        _ => (1000, 10_000_000_000),
    };
    match simulate(nodes, samples) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn simulate(nodes: u64, samples: u64) -> Result<(), PackError> {
    let histograms: Vec<Vec<(u32, u64)>> = (0..nodes).map(|node| histogram(node, samples / nodes)).collect();
    let exchanged: usize =
        histograms.iter().map(|histogram| serde_json::to_vec(histogram).map_or(0, |text| text.len())).sum();
    let of_class = |(class, count): &(u32, u64)| u64::from(*class) * count;
    let tokens = histograms.iter().flatten().map(of_class).sum();
    let limits = Limits { max_samples: 200, ..Limits::new(SEQ_LEN) };

    let started = Instant::now();
    let (peak, packing) =
        peak_of(|| GlobalPacking::new(&histograms, tokens, &limits, Algorithm::BestFitDecreasing, SEED));
    let packing = packing?;
    let planned = started.elapsed();

    let mut slowest = std::time::Duration::ZERO;
    let (mut members, mut reads, mut files) = (0, 0, 0);
    let shards = packing.len().div_ceil(SHARD);
    let looked_at = [0, shards / 3, shards / 2, shards - 1];
    for shard in looked_at {
        let started = Instant::now();
        let mut wanted: BTreeMap<u32, BTreeSet<(u32, u64)>> = BTreeMap::new();
        let packs = shard * SHARD..packing.len().min((shard + 1) * SHARD);
        for pack in packs {
            for member in packing.members(pack) {
                wanted.entry(member.node).or_default().insert((member.class, member.rank));
            }
        }
        slowest = slowest.max(started.elapsed());
        let of_shard: usize = wanted.values().map(BTreeSet::len).sum();
        members += of_shard;
        files += wanted.len();
        // A sorted file is read in order; members less than 64 KiB apart are one request.
        reads += wanted.values().map(requests).sum::<u64>();
    }
    let shown = looked_at.len();

    let title = format!(
        "{nodes} nodes, {} samples, seq_len {SEQ_LEN}: simulated from lognormal histograms",
        scaled(samples)
    );
    let mut table = Table::new(&title, ["what one node does", "figure"]);
    table.row([
        "histograms of all nodes, as JSON".into(),
        format!("{:.1} MB, {:.0} KB a node", exchanged as f64 / 1e6, exchanged as f64 / nodes as f64 / 1e3),
    ]);
    table.row(["packing of all samples".into(), milliseconds(planned)]);
    table.row([
        "memory of that at its peak".into(),
        peak.map_or("-".into(), |peak| format!("{:.0} MB", peak as f64 / 1e6)),
    ]);
    table.row([
        "packs".into(),
        format!("{} in {shards} shards, {:.4} % full", packing.len(), 100.0 * packing.quality().fill),
    ]);
    table.row([
        format!("finding the members of a shard of {SHARD} packs, slowest of {shown}"),
        milliseconds(slowest),
    ]);
    table.row(["members of a shard".into(), format!("{} on {} nodes", members / shown, files / shown)]);
    table.row([
        "reads of 48 bytes for them".into(),
        format!("{}, of which {} requests when near ones are joined", members / shown, reads / shown as u64),
    ]);
    println!("{table}");
    Ok(())
}

/// How many requests get these entries of one file, if gaps of up to 64 KiB are read along. Ranks of different
/// classes are far apart.
fn requests(entries: &BTreeSet<(u32, u64)>) -> u64 {
    let gap = (64 << 10) / ENTRY;
    let mut requests = 0;
    let mut last: Option<(u32, u64)> = None;
    for &(class, rank) in entries {
        let near = last.is_some_and(|(of, before)| of == class && rank - before <= gap);
        requests += u64::from(!near);
        last = Some((class, rank));
    }
    requests
}

/// About `samples` lengths exp N(6.5, 1), a little different on every node.
fn histogram(node: u64, samples: u64) -> Vec<(u32, u64)> {
    let mean = 6.5 + (node % 7) as f64 / 70.0;
    let density = |length: f64| (-0.5 * (length.ln() - mean).powi(2)).exp() / length;
    let total: f64 = (1..=SEQ_LEN).map(|length| density(f64::from(length) + 0.5)).sum();
    (1..=SEQ_LEN)
        .map(|length| {
            let share = density(f64::from(length) + 0.5) / total;
            // Counts of neighbours differ, as drawn ones do.
            let noise = 0.9 + ((node * 31 + u64::from(length) * 17) % 21) as f64 / 100.0;
            (length, (samples as f64 * share * noise) as u64)
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}
