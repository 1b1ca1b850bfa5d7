//! Input, images and output in an object store: the same bytes as in a folder, however many nodes work.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{write_dataset, write_tiny_model};
use object_store::memory::InMemory;
use packd::storage::Stores;
use packd::{Config, Error, Job};

fn bucket(folder: &Path) -> Arc<Stores> {
    write_dataset(folder, 400);
    write_tiny_model(folder);
    let stores = Stores::new(Default::default()).unwrap();
    stores.insert("s3://bucket", Arc::new(InMemory::new()));
    let put = |name: &str, path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        stores.object(&format!("s3://bucket/in/{name}")).unwrap().write(bytes.into()).unwrap();
    };
    put("data.jsonl", &folder.join("data.jsonl"));
    let packed = zstd::bulk::compress(&std::fs::read(folder.join("data.jsonl")).unwrap(), 3).unwrap();
    stores.object("s3://bucket/in/data.zst").unwrap().write(packed.into()).unwrap();
    for image in std::fs::read_dir(folder.join("images")).unwrap().map(|entry| entry.unwrap()) {
        put(&format!("images/{}", image.file_name().to_string_lossy()), &image.path());
    }
    stores
}

fn config(folder: &Path, input: &str, output: &str, nodes: u32) -> Config {
    Config {
        input: vec![input.into()],
        seq_len: Some(2048),
        model: Some(folder.join("tiny")),
        max_reject_rate: 1.0,
        max_samples_per_shard: 9,
        output: Some(output.into()),
        nodes,
        ..Default::default()
    }
}

fn run(stores: &Arc<Stores>, config: Config) -> Result<packd::Report, Error> {
    let job = Job::with_stores(config, Arc::clone(stores))?.with_unit_bytes(16 << 10);
    tokio::runtime::Runtime::new().unwrap().block_on(job.run())
}

/// Every object of an output, `run/` aside.
fn objects(stores: &Arc<Stores>, output: &str) -> BTreeMap<String, Vec<u8>> {
    let prefix = stores.object(output).unwrap();
    let names = prefix.list().unwrap().into_iter().map(|(name, _)| name);
    names
        .filter(|name| !name.starts_with("run/"))
        .map(|name| {
            let bytes = prefix.join(&name).unwrap().unwrap().read().unwrap().unwrap();
            (name, bytes.into())
        })
        .collect()
}

fn shards(objects: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let base = |name: String| name.rsplit('/').next().unwrap().to_owned();
    objects
        .into_iter()
        .map(|(name, bytes)| (base(name), bytes))
        .filter(|(name, _)| name.contains(".tar"))
        .collect()
}

#[test]
fn one_node_and_three_write_the_same_shards() {
    let folder = tempfile::tempdir().unwrap();
    let stores = bucket(folder.path());
    let run =
        |input: &str, output: &str, nodes| run(&stores, config(folder.path(), input, output, nodes)).unwrap();
    let report = run("s3://bucket/in/*.jsonl", "s3://bucket/one", 1);
    assert_eq!(report.records.read, 400);
    assert_eq!(report.records.read, report.records.accepted + report.records.rejected_total());
    assert!(report.records.accepted > 300);
    run("s3://bucket/in/data.jsonl", "s3://bucket/three", 3);
    let one = objects(&stores, "s3://bucket/one");
    assert!(
        one.contains_key("dataset.yaml") && one.contains_key("node_000/webdataset/.nv-meta/index.sqlite")
    );
    assert_eq!(shards(one), shards(objects(&stores, "s3://bucket/three")));
    // Compressed inputs are spooled, and the spools lie in the store for the other nodes.
    run("s3://bucket/in/data.zst", "s3://bucket/packed1", 1);
    run("s3://bucket/in/data.zst", "s3://bucket/packed3", 3);
    let packed = shards(objects(&stores, "s3://bucket/packed1"));
    assert!(!packed.is_empty());
    assert_eq!(packed, shards(objects(&stores, "s3://bucket/packed3")));
}

#[test]
fn a_run_is_found_complete_and_continued_where_objects_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let stores = bucket(folder.path());
    let (input, output) = ("s3://bucket/in/data.jsonl", "s3://bucket/out");
    run(&stores, config(folder.path(), input, output, 2)).unwrap();
    let expected = objects(&stores, output);
    assert!(run(&stores, config(folder.path(), input, output, 2)).unwrap().already_done);
    let names: Vec<String> =
        stores.object(output).unwrap().list().unwrap().into_iter().map(|(name, _)| name).collect();
    // What one node measures again takes the word back that the other wrote by: at any moment of the other.
    let measured_again = [".details"; 6];
    let others = [".tar", ".sqlite", "sorted.rows", "measured.json", "written.json", "dataset.yaml"];
    for lost in measured_again.into_iter().chain(others) {
        let lost = names.iter().rfind(|name| name.ends_with(lost)).unwrap();
        // Once finished, what only a continued run needs is not looked at any more.
        for name in [lost, "run/done.json"] {
            stores.object(&format!("{output}/{name}")).unwrap().remove().unwrap();
        }
        let report = run(&stores, config(folder.path(), input, output, 2)).unwrap();
        assert!(!report.already_done, "{lost}");
        let found = objects(&stores, output);
        let differs = |name: &&String| expected.get(*name) != found.get(*name);
        let differing: Vec<&String> = expected.keys().chain(found.keys()).filter(differs).collect();
        assert!(differing.is_empty(), "{lost}: {differing:?}");
    }
    let other = Config { seed: 1, ..config(folder.path(), input, output, 2) };
    assert!(matches!(run(&stores, other), Err(Error::OtherJob { .. })));
}

#[test]
fn images_of_urls_are_found_below_the_roots_only() {
    let folder = tempfile::tempdir().unwrap();
    let stores = bucket(folder.path());
    let image = |name: &str| {
        format!(
            "{}\n",
            serde_json::json!({"images": [name], "messages": [{"role": "user", "content": "<image>"},
                {"role": "assistant", "content": "x"}]})
        )
    };
    let names = [
        "images/1.png",
        "s3://bucket/in/images/1.png",
        "images/absent.png",
        "../in/images/1.png",
        "s3://bucket/elsewhere/1.png",
        "/etc/hostname",
        "ftp://host/1.png",
    ];
    let text: String = names.map(image).concat();
    stores.object("s3://bucket/in/urls.jsonl").unwrap().write(text.into()).unwrap();
    let output = folder.path().join("out");
    let config = config(folder.path(), "s3://bucket/in/urls.jsonl", output.to_str().unwrap(), 1);
    let report = run(&stores, config).unwrap();
    assert_eq!(report.records.accepted, 2);
    let reasons: Vec<(String, u64)> =
        report.records.rejected.iter().map(|(reason, count)| (reason.code().to_owned(), *count)).collect();
    let expected = [("image-missing", 1), ("image-outside-root", 3), ("image-scheme", 1)];
    assert_eq!(reasons, expected.map(|(reason, count)| (reason.to_owned(), count)));
}

#[test]
fn two_workers_on_one_node_lose_nothing_whoever_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let stores = bucket(folder.path());
    let input = "s3://bucket/in/data.jsonl";
    run(&stores, config(folder.path(), input, "s3://bucket/expected", 1)).unwrap();
    let expected = objects(&stores, "s3://bucket/expected");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pause = |round: u64, step: u64| Duration::from_millis((round * 7919 + step * 104_729) % 90);
    for round in 0..15 {
        let output = format!("s3://bucket/twins{round}");
        let job = || {
            let config = config(folder.path(), input, &output, 1);
            let job = Job::with_stores(config, Arc::clone(&stores)).unwrap().with_unit_bytes(4 << 10);
            (job.cancellation(), job.work())
        };
        runtime.block_on(async {
            let ((stop_one, one), (stop_other, other)) = (job(), job());
            let one = tokio::spawn(one);
            tokio::time::sleep(pause(round, 0)).await;
            let other = tokio::spawn(other);
            tokio::time::sleep(pause(round, 1)).await;
            stop_one.cancel();
            tokio::time::sleep(pause(round, 2)).await;
            stop_other.cancel();
            for ended in [one.await.unwrap(), other.await.unwrap()] {
                assert!(matches!(ended, Ok(_) | Err(Error::Interrupted)), "round {round}: {ended:?}");
            }
        });
        let report = run(&stores, config(folder.path(), input, &output, 1)).unwrap();
        assert_eq!(report.records.read, 400, "round {round}");
        assert!(expected == objects(&stores, &output), "round {round}");
    }
}
