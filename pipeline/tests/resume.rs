//! A run may be killed at any moment: continued, it leaves the same bytes.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{assert_same_tree, packd, write_dataset, write_tiny_model};

/// Many small units and shards, so that a kill falls between and into commits.
const ARGUMENTS: [&str; 13] = [
    "run",
    "data.jsonl",
    "--model",
    "tiny",
    "--seq-len",
    "2048",
    "--max-reject-rate",
    "0.1",
    "--unit-bytes",
    "16KB",
    "--max-samples-per-shard",
    "7",
    "--quiet",
];
const KILLS: u32 = 30;

fn run(folder: &Path, output: &str, more: &[&str]) -> std::process::Output {
    packd(folder).args(ARGUMENTS).args(["-o", output]).args(more).output().unwrap()
}

fn run_to_the_end(folder: &Path, output: &str, more: &[&str]) {
    let done = run(folder, output, more);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn threads_do_not_change_a_byte() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 600);
    write_tiny_model(folder.path());
    run_to_the_end(folder.path(), "one", &["--threads", "1"]);
    for threads in ["2", "5"] {
        run_to_the_end(folder.path(), threads, &["--threads", threads]);
        assert_same_tree(&folder.path().join("one"), &folder.path().join(threads), threads);
    }
}

#[test]
fn a_run_killed_at_any_moment_continues_to_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 1500);
    write_tiny_model(folder.path());
    let started = Instant::now();
    run_to_the_end(folder.path(), "undisturbed", &[]);
    // How long a run takes: less than the first one took, where that one found the machine busy.
    let mut whole = started.elapsed();
    let units = std::fs::read_dir(folder.path().join("undisturbed/run/node_000/measured")).unwrap();
    let units = units
        .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|kind| kind == "rows"))
        .count();
    assert!(units >= 3, "{units} units: kills would not fall between them");
    let (mut killed, mut resumed) = (0, 0);
    for attempt in 0.. {
        if attempt >= KILLS && killed >= KILLS {
            break;
        }
        assert!(attempt < 10 * KILLS, "only {killed} kills hit a running process");
        let output = format!("killed-{attempt}");
        // Moments spread over the run, each at another fraction of it.
        let mut delay = whole.mul_f64(f64::from(attempt % KILLS + 1) / f64::from(KILLS + 1));
        loop {
            let started = Instant::now();
            let mut child = packd(folder.path())
                .args(ARGUMENTS)
                .args(["-o", &output])
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(delay);
            if child.try_wait().unwrap().is_some() {
                whole = whole.min(started.elapsed());
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
            // Later attempts get longer, so that the run ends.
            delay = delay.mul_f64(1.3) + Duration::from_millis(5);
        }
        run_to_the_end(folder.path(), &output, &["--verify-resume"]);
        resumed += 1;
        assert_same_tree(&folder.path().join("undisturbed"), &folder.path().join(&output), &output);
        std::fs::remove_dir_all(folder.path().join(&output)).unwrap();
    }
    println!("{killed} kills, {resumed} outputs equal to the undisturbed one");
}

#[test]
fn an_interrupted_run_says_so_and_continues() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 3000);
    write_tiny_model(folder.path());
    run_to_the_end(folder.path(), "undisturbed", &[]);
    let mut child =
        packd(folder.path()).args(ARGUMENTS).args(["-o", "out"]).stderr(Stdio::piped()).spawn().unwrap();
    // Once there is a ledger the handler of signals is in place.
    while !folder.path().join("out/run/node_000/ledger.jsonl").exists() && child.try_wait().unwrap().is_none()
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let terminated =
        std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let done = child.wait_with_output().unwrap();
    if terminated.success() && !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(75), "{said}");
        assert!(said.contains("interrupted") && said.contains("run the same command again"), "{said}");
    }
    run_to_the_end(folder.path(), "out", &[]);
    assert_same_tree(&folder.path().join("undisturbed"), &folder.path().join("out"), "interrupted");
}

#[test]
fn another_job_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 100);
    write_tiny_model(folder.path());
    run_to_the_end(folder.path(), "out", &[]);
    let before = common::tree(&folder.path().join("out"));
    let refused = |more: &[&str], expected: &str| {
        let done = run(folder.path(), "out", more);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(73), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    refused(&["--seed", "7"], "`seed` was 42, now 7");
    refused(&["--profile", "qwen2.5-vl"], "`profile`");
    let mut text = std::fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    text.push('\n');
    std::fs::write(folder.path().join("data.jsonl"), text).unwrap();
    refused(&[], "data.jsonl had ");
    assert!(before == common::tree(&folder.path().join("out")), "a refused run must not touch the output");
    std::fs::create_dir(folder.path().join("mine")).unwrap();
    std::fs::write(folder.path().join("mine/thesis.tex"), "x").unwrap();
    let done = run(folder.path(), "mine", &[]);
    assert_eq!(done.status.code(), Some(73));
    assert!(folder.path().join("mine/thesis.tex").exists());
}

#[test]
fn finished_files_that_were_damaged_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 300);
    write_tiny_model(folder.path());
    run_to_the_end(folder.path(), "good", &[]);
    for damaged in
        ["node_000/webdataset/ps-000001.tar", "lengths.parquet", "node_000/webdataset/.nv-meta/index.sqlite"]
    {
        run_to_the_end(folder.path(), "out", &[]);
        std::fs::remove_file(folder.path().join("out").join(damaged)).unwrap();
        run_to_the_end(folder.path(), "out", &[]);
        assert_same_tree(&folder.path().join("good"), &folder.path().join("out"), damaged);
    }
}

/// The bytes that were measured are the bytes that are written, or there is no shard.
#[test]
fn an_image_that_was_replaced_since_it_was_measured_stops_the_run() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 300);
    write_tiny_model(folder.path());
    run_to_the_end(folder.path(), "out", &[]);
    let shard = folder.path().join("out/node_000/webdataset/ps-000001.tar");
    std::fs::remove_file(&shard).unwrap();
    for number in [0, 2, 4, 6] {
        let image = folder.path().join(format!("images/{number}.jpg"));
        let mut bytes = std::fs::read(&image).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&image, bytes).unwrap();
    }
    let again = run(folder.path(), "out", &[]);
    let error = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(74), "{error}");
    assert!(error.contains("an image of the record was written to since it was measured"), "{error}");
    assert!(!shard.exists());
}

#[test]
fn force_moves_the_earlier_output_aside() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_dataset(folder, 60);
    write_tiny_model(folder);
    run_to_the_end(folder, "out", &[]);
    let refused = run(folder, "out", &["--seed", "7"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(73) && said.contains("--force"), "{said}");
    run_to_the_end(folder, "earlier", &[]);
    for (seed, moved) in [("7", "out.1"), ("8", "out.2")] {
        run_to_the_end(folder, "out", &["--seed", seed, "--force"]);
        assert!(folder.join(moved).join("dataset.yaml").exists(), "{moved}");
        // The same job is continued, not begun anew.
        run_to_the_end(folder, "out", &["--seed", seed, "--force"]);
    }
    assert!(!folder.join("out.3").exists());
    // A job that cannot be run moves nothing.
    let wrong = run(folder, "out", &["absent.jsonl", "--seed", "9", "--force"]);
    assert!(!wrong.status.success() && !folder.join("out.3").exists());
    assert_same_tree(&folder.join("earlier"), &folder.join("out.1"), "moved aside");
    // What packd did not write stays where it is.
    std::fs::create_dir(folder.join("mine")).unwrap();
    std::fs::write(folder.join("mine/thesis.txt"), "x").unwrap();
    let refused = run(folder, "mine", &["--force"]);
    assert_eq!(refused.status.code(), Some(73));
    assert!(folder.join("mine/thesis.txt").exists());
}
