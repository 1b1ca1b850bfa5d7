//! Many nodes write what one writes, in whatever order they come, and whoever is killed.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{assert_same_tree, packd, tree, write_dataset, write_tiny_model};

/// Small units and shards, so that every node has some.
const JOB: [&str; 9] = [
    "data.jsonl",
    "--model",
    "tiny",
    "--seq-len",
    "2048",
    "--max-samples-per-shard",
    "20",
    "--image-root",
    ".",
];

fn command(folder: &Path, name: &str, output: &str, more: &[&str]) -> Command {
    let mut command = packd(folder);
    command.arg(name).args(["--quiet", "--unit-bytes", "16KB", "-o", output]).args(more);
    command
}

fn succeed(mut command: Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", said(&done));
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn run(folder: &Path, output: &str, more: &[&str]) {
    let mut command = command(folder, "run", output, more);
    command.args(JOB);
    succeed(command);
}

fn verify_of(folder: &Path, output: &str) -> Command {
    let mut command = packd(folder);
    command.args(["verify", output]);
    command
}

fn data_set(records: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), records);
    write_tiny_model(folder.path());
    folder
}

/// The shards by name, whichever node wrote them.
fn shards(output: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_shard = |path: &Path| path.to_str().unwrap().contains(".tar");
    let files = tree(output).into_iter().filter(|(path, _)| is_shard(path));
    files.map(|(path, bytes)| (path.file_name().unwrap().into(), bytes)).collect()
}

fn assert_same_data(one: &Path, other: &Path, what: &str) {
    let (expected, found) = (shards(one), shards(other));
    assert!(expected.len() >= 8, "{what}: {} shard files", expected.len());
    assert!(expected.keys().eq(found.keys()), "{what}: other shards");
    for (name, bytes) in &expected {
        assert!(bytes == &found[name], "{what}: {} differs", name.display());
    }
    for table in ["lengths.parquet", "bins.parquet", "rejects.jsonl"] {
        let read = |output: &Path| std::fs::read(output.join(table)).unwrap();
        assert!(read(one) == read(other), "{what}: {table} differs");
    }
}

#[test]
fn any_number_of_nodes_writes_the_same_shards_and_tables() {
    let folder = data_set(600);
    let path = |name: &str| folder.path().join(name);
    run(folder.path(), "one", &[]);
    for nodes in ["2", "5"] {
        let output = format!("n{nodes}");
        run(folder.path(), &output, &["--nodes", nodes]);
        assert_same_data(&path("one"), &path(&output), nodes);
        succeed(verify_of(folder.path(), &output));
    }
}

#[test]
fn limits_and_policies_that_need_all_samples_hold_over_nodes() {
    let folder = data_set(400);
    let path = |name: &str| folder.path().join(name);
    let text = std::fs::read_to_string(path("data.jsonl")).unwrap();
    // Every record a second time: its id is a duplicate, on another node.
    std::fs::write(path("data.jsonl"), format!("{text}{text}")).unwrap();
    let policies = ["--max-images", "3", "--duplicate-id", "reject"];
    run(folder.path(), "one", &policies);
    run(folder.path(), "three", &[&policies[..], &["--nodes", "3"]].concat());
    assert_same_data(&path("one"), &path("three"), "three nodes");
    let rejects = std::fs::read_to_string(path("three/rejects.jsonl")).unwrap();
    assert!(rejects.contains("duplicate-id"));
}

#[test]
fn inputs_of_every_shape_are_shared_between_nodes() {
    let folder = data_set(300);
    let path = |name: &str| folder.path().join(name);
    let text = std::fs::read_to_string(path("data.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(path("a.json"), format!("[{}]", lines[..100].join(",\n"))).unwrap();
    std::fs::write(path("b.jsonl.zst"), zstd::encode_all(lines[100..200].join("\n").as_bytes(), 3).unwrap())
        .unwrap();
    std::fs::write(path("c.jsonl"), lines[200..].join("\n")).unwrap();
    let job = [
        "a.json",
        "b.jsonl.zst",
        "c.jsonl",
        "--image-root",
        ".",
        "--model",
        "tiny",
        "--seq-len",
        "2048",
        "--max-samples-per-shard",
        "20",
    ];
    for (output, nodes) in [("one", "1"), ("four", "4")] {
        let mut command = command(folder.path(), "run", output, &job);
        command.args(["--nodes", nodes]);
        succeed(command);
    }
    assert_same_data(&path("one"), &path("four"), "four nodes");
}

#[test]
fn workers_started_by_hand_in_any_order_write_the_same() {
    let folder = data_set(400);
    let path = |name: &str| folder.path().join(name);
    run(folder.path(), "launched", &["--nodes", "3"]);
    let mut plan = packd(folder.path());
    plan.args(["plan", "-o", "by-hand", "--nodes", "3"]).args(JOB);
    succeed(plan);
    let start = |node: &str| {
        command(folder.path(), "work", "by-hand", &["--node-index", node])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut workers: Vec<Child> = ["2", "0"].map(start).into();
    // The engine's own number of the worker.
    let mut last = command(folder.path(), "work", "by-hand", &[]);
    last.env("JOB_COMPLETION_INDEX", "1");
    succeed(last);
    workers.iter_mut().for_each(|worker| assert!(worker.wait().unwrap().success()));
    assert_same_tree(&path("launched"), &path("by-hand"), "by hand");
}

#[test]
fn a_node_that_waits_in_vain_says_for_whom_and_can_be_run_again() {
    let folder = data_set(300);
    let alone = |node: &str, seconds: &str| {
        let mut command = command(folder.path(), "work", "out", &["--nodes", "3", "--node-index", node]);
        command.args(JOB).args(["--wait-timeout", seconds]).output().unwrap()
    };
    let waited = alone("1", "0");
    assert_eq!(waited.status.code(), Some(75), "{}", said(&waited));
    assert!(said(&waited).contains("node 0, 2 has not measured its part yet"), "{}", said(&waited));
    let mut finalize = packd(folder.path());
    let early = finalize.args(["finalize", "out"]).output().unwrap();
    assert_eq!(early.status.code(), Some(75), "{}", said(&early));
    // Measured once, the others' parts are known: each can finish alone.
    for node in ["0", "2", "1", "0", "2"] {
        let done = alone(node, "0");
        assert!(matches!(done.status.code(), Some(0 | 75)), "{}", said(&done));
    }
    run(folder.path(), "launched", &["--nodes", "3"]);
    assert_same_tree(&folder.path().join("launched"), &folder.path().join("out"), "one by one");
    let none = alone("3", "0");
    assert_eq!(none.status.code(), Some(78), "{}", said(&none));
}

#[test]
fn nodes_that_pack_for_themselves_have_names_of_their_own() {
    let folder = data_set(400);
    run(folder.path(), "out", &["--nodes", "3", "--scope", "node"]);
    let names: Vec<String> =
        shards(&folder.path().join("out")).into_keys().map(|name| name.display().to_string()).collect();
    for node in 0..3 {
        assert!(names.contains(&format!("ps_n{node}-000000.tar")), "{names:?}");
    }
    succeed(verify_of(folder.path(), "out"));
}

#[test]
fn what_a_node_has_lost_it_writes_again_and_nobody_certifies_it_before() {
    let folder = data_set(400);
    run(folder.path(), "good", &["--nodes", "3"]);
    let job = ["--nodes", "3"];
    for lost in [
        "node_001/webdataset/ps-000004.tar",
        "run/node_001/shards/ps-000004.tar.json",
        "run/node_002/measured/000000.rows",
        "run/node_000/ledger.jsonl",
        "run/node_001/sorted.rows",
    ] {
        run(folder.path(), "out", &job);
        let path = folder.path().join("out").join(lost);
        std::fs::remove_file(&path).unwrap_or_else(|error| panic!("{lost}: {error}"));
        std::fs::remove_file(folder.path().join("out/run/done.json")).unwrap();
        let mut finalize = packd(folder.path());
        let refused = finalize.args(["finalize", "out"]).output().unwrap();
        // A ledger that is lost takes nothing with it that was promised.
        let expected = if lost.ends_with("ledger.jsonl") { 0 } else { 75 };
        assert_eq!(refused.status.code(), Some(expected), "{lost}: {}", said(&refused));
        run(folder.path(), "out", &job);
        assert_same_tree(&folder.path().join("good"), &folder.path().join("out"), lost);
        std::fs::remove_dir_all(folder.path().join("out")).unwrap();
    }
}

#[test]
fn messages_name_the_line_of_the_input_whichever_node_reads_it() {
    let folder = data_set(300);
    let path = folder.path().join("data.jsonl");
    let text = std::fs::read_to_string(&path).unwrap().replace("images/absent.jpg", "images/0.jpg");
    std::fs::write(&path, format!("{text}{{\"id\": \"broken\"}}\n")).unwrap();
    let job = ["data.jsonl", "--model", "tiny", "--seq-len", "16384", "--nodes", "3", "--fail-fast"];
    let failed = self::command(folder.path(), "run", "out", &job).output().unwrap();
    assert_eq!(failed.status.code(), Some(65), "{}", said(&failed));
    assert!(said(&failed).contains("data.jsonl:301: no-turns"), "{}", said(&failed));
}

#[test]
fn a_val_split_may_be_less_than_a_shard_for_each_node() {
    let folder = data_set(600);
    run(folder.path(), "out", &["--nodes", "3", "--val-fraction", "0.1"]);
    let yaml = std::fs::read_to_string(folder.path().join("out/dataset.yaml")).unwrap();
    let (train, val) = yaml.split_once("  val:").unwrap();
    assert_eq!(train.matches("path:").count(), 3, "{yaml}");
    assert!((1..=3).contains(&val.matches("path:").count()), "{yaml}");
    succeed(verify_of(folder.path(), "out"));
}

#[test]
fn a_worker_without_a_plan_and_one_in_another_folder_say_what_is_missing() {
    let folder = data_set(100);
    let mut command = self::command(folder.path(), "work", "out", &["--node-index", "0"]);
    let unplanned = command.output().unwrap();
    assert_eq!(unplanned.status.code(), Some(75), "{}", said(&unplanned));
    assert!(said(&unplanned).contains("no job is planned in out"), "{}", said(&unplanned));
    run(folder.path(), "out", &["--nodes", "2"]);
    std::fs::create_dir(folder.path().join("elsewhere")).unwrap();
    let mut finalize = packd(&folder.path().join("elsewhere"));
    let lost = finalize.args(["finalize", "../out"]).output().unwrap();
    assert_eq!(lost.status.code(), Some(78), "{}", said(&lost));
    assert!(said(&lost).contains("where the job was planned"), "{}", said(&lost));
}

/// How many runs are killed: more with `KILLED_RUNS=100`.
fn killed_runs() -> u32 {
    std::env::var("KILLED_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(10)
}

#[test]
fn whoever_is_killed_the_job_continues_to_the_same_bytes() {
    let folder = data_set(800);
    let started = Instant::now();
    run(folder.path(), "undisturbed", &["--nodes", "3"]);
    // How long a run takes: less than the first one took, where that one found the machine busy.
    let mut whole = started.elapsed().as_millis() as u64;
    let (runs, mut number, mut killed) = (killed_runs(), 0, [0, 0]);
    while number < runs || killed.contains(&0) {
        assert!(number < runs + 100, "{killed:?} killed in {number} runs");
        let output = format!("killed-{number}");
        let mut random = 0x9e37_79b9_u64.wrapping_mul(u64::from(number) + 1);
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for attempt in 0.. {
            let mut command = command(folder.path(), "run", &output, &["--nodes", "3"]);
            let started = Instant::now();
            let mut launcher = command.args(JOB).stderr(Stdio::null()).spawn().unwrap();
            if attempt < 3 {
                std::thread::sleep(Duration::from_millis(next(whole.max(1))));
                match kill_one(&mut launcher, next(4)) {
                    Some(kind) => killed[kind] += 1,
                    // It had ended before.
                    None => whole = whole.min(started.elapsed().as_millis() as u64 * 4 / 5),
                }
            }
            if launcher.wait().unwrap().success() {
                break;
            }
        }
        assert_same_tree(&folder.path().join("undisturbed"), &folder.path().join(&output), &output);
        std::fs::remove_dir_all(folder.path().join(&output)).unwrap();
        number += 1;
    }
    println!(
        "{number} runs, {} launchers and {} workers killed: {number} equal outputs",
        killed[0], killed[1]
    );
}

/// Kills a running launcher (0) or one of its workers (1), which it starts again, and says
/// which; `None` if the launcher had ended.
fn kill_one(launcher: &mut Child, victim: u64) -> Option<usize> {
    if launcher.try_wait().unwrap().is_some() {
        return None;
    }
    let workers = children(launcher.id());
    if let Some(worker) = victim.checked_sub(1).and_then(|worker| workers.get(worker as usize)) {
        let mut kill = Command::new("kill");
        let status = kill.args(["-9", &worker.to_string()]).stderr(Stdio::null()).status().unwrap();
        return status.success().then_some(1);
    }
    launcher.kill().unwrap();
    Some(0)
}

/// The processes that a process started.
fn children(process: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children")).ok();
    let listed: Vec<String> = threads.flatten().filter_map(of).collect();
    listed.iter().flat_map(|list| list.split_whitespace()).filter_map(|child| child.parse().ok()).collect()
}
