//! One worker and four on the same job, in a store that takes 20 ms longer for every request: bound by latency, so that
//! it means something on a machine with few cores.
//!
//! `store_scaling [RECORDS]`, each with one image.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use packd::storage::{StoreOptions, Stores};
use packd::{Config, Job, Seconds};
use packd_benches::Table;
use tokio::task::JoinSet;

const DELAY: Duration = Duration::from_millis(20);
/// Requests that one worker has in flight.
const IN_FLIGHT: usize = 4;
const BUCKET: &str = "s3://bench";

fn main() -> Result<(), Box<dyn Error>> {
    let records = std::env::args().nth(1).map_or(Ok(12_000), |text| text.parse())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let memory = Arc::new(InMemory::new());
    runtime.block_on(fill(&memory, records))?;
    let config = ThrottleConfig {
        wait_get_per_call: DELAY,
        wait_put_per_call: DELAY,
        wait_list_per_call: DELAY,
        wait_list_with_delimiter_per_call: DELAY,
        wait_delete_per_call: DELAY,
        ..ThrottleConfig::default()
    };
    let slow: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(Arc::clone(&memory), config));
    // The tokenizer is loaded once in a process.
    pack(&runtime, &slow, "warm.jsonl", 1)?;
    let one = pack(&runtime, &slow, "data.jsonl", 1)?;
    let four = pack(&runtime, &slow, "data.jsonl", 4)?;
    let title =
        format!("{records} records with an image each, in a store that adds {} ms", DELAY.as_millis());
    let mut table = Table::new(&title, ["workers", "time", "measure", "write", "finalize", "speed"]);
    for (workers, (time, phases)) in [(1, one), (4, four)] {
        let speed = one.0.as_secs_f64() / time.as_secs_f64();
        let [measure, write, finalize] =
            [phases.measure, phases.write, phases.finalize].map(|phase| format!("{phase:.1} s"));
        table.row([
            workers.to_string(),
            format!("{:.1} s", time.as_secs_f64()),
            measure,
            write,
            finalize,
            format!("{speed:.2} ×"),
        ]);
    }
    println!("{table}");
    Ok(())
}

async fn fill(store: &InMemory, records: u32) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    for number in 0..records {
        let name = format!("images/{number}.png");
        let words = "word ".repeat(20 + (number * 7919 % 400) as usize);
        let record = serde_json::json!({"images": [name], "messages": [
            {"role": "user", "content": "<image>\nDescribe this."}, {"role": "assistant", "content": words}]});
        text += &format!("{record}\n");
        let picture = image::RgbImage::from_pixel(
            56 + number % 300,
            56 + number % 170,
            image::Rgb([number as u8, 9, 7]),
        );
        let mut bytes = std::io::Cursor::new(Vec::new());
        picture.write_to(&mut bytes, image::ImageFormat::Png)?;
        store.put(&name.as_str().into(), PutPayload::from(bytes.into_inner())).await?;
    }
    let first = text.lines().next().unwrap_or_default().to_owned();
    store.put(&"warm.jsonl".into(), PutPayload::from(first)).await?;
    store.put(&"data.jsonl".into(), PutPayload::from(text)).await?;
    Ok(())
}

/// The time of all workers together, each with a client of its own.
fn pack(
    runtime: &tokio::runtime::Runtime,
    store: &Arc<dyn ObjectStore>,
    input: &str,
    workers: u32,
) -> Result<(Duration, Seconds), Box<dyn Error>> {
    let config = Config {
        input: vec![format!("{BUCKET}/{input}")],
        output: Some(format!("{BUCKET}/out-{input}-{workers}").into()),
        seq_len: Some(8192),
        max_samples_per_shard: 3,
        nodes: workers,
        threads: Some(1),
        store_concurrency: IN_FLIGHT,
        ..Config::default()
    };
    let mut jobs = Vec::new();
    for worker in 0..workers {
        let stores = Stores::new(StoreOptions { concurrency: IN_FLIGHT, ..StoreOptions::default() })?;
        stores.insert(BUCKET, Arc::clone(store));
        jobs.push(Job::with_stores(config.clone(), stores)?.with_node(worker)?);
    }
    let started = Instant::now();
    runtime.block_on(async {
        let mut report = None;
        let mut running: JoinSet<_> = jobs.into_iter().map(Job::work).collect();
        while let Some(done) = running.join_next().await {
            report = done??.or(report);
        }
        let phases = report.map(|report| report.seconds).unwrap_or_default();
        Ok((started.elapsed(), phases))
    })
}
