//! Whatever bytes stand in a file, verify reports and never panics.

use packd::{VerifyOptions, verify};

use crate::set::{Copied, packs};

#[test]
fn damaged_files_of_every_kind_are_faults() {
    let copy = Copied::new();
    let files = [
        copy.shard(0),
        copy.shards().join("ps-000000.tar.idx"),
        copy.meta("index.sqlite"),
        copy.meta(".info.json"),
        copy.meta(".info.yaml"),
        copy.meta("split.yaml"),
        copy.meta("dataset.yaml"),
        copy.meta("sample_loader.py"),
        copy.root().join("bins.parquet"),
        copy.root().join("checksums.xxh128"),
        copy.root().join("dataset.yaml"),
    ];
    for file in files {
        let whole = std::fs::read(&file).unwrap();
        // A walk over the file with a fixed stride: every part of it is damaged once.
        let mut damaged: Vec<Vec<u8>> = vec![Vec::new(), vec![0xff; 700], whole[..whole.len() / 3].to_vec()];
        for step in 0..8 {
            let mut bytes = whole.clone();
            let at = step * whole.len() / 8 + step;
            let end = bytes.len().min(at + 3);
            bytes[at.min(end)..end].fill(0xff);
            damaged.push(bytes);
        }
        for bytes in damaged {
            if bytes == whole {
                continue;
            }
            std::fs::write(&file, &bytes).unwrap();
            // Texts are not what is damaged here: counting them again would only take time.
            let report = verify(&VerifyOptions { sample: 1e-9, ..VerifyOptions::new(copy.root()) }).unwrap();
            assert!(!report.passed(), "{} with {} bytes", file.display(), bytes.len());
        }
        std::fs::write(&file, &whole).unwrap();
    }
    assert!(copy.verify().passed());
}

#[test]
fn jsons_that_lie_are_faults_of_their_sample() {
    let pack = packs().remove(0);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [
        deep.as_str(),
        "null",
        "{}",
        r#"{"images": [[1]], "prompts": [["<image>"]], "captions": [["a"]], "lengths": [18446744073709551615], "cu_lengths": [0, 1]}"#,
        r#"{"images": [[]], "prompts": [[""]], "captions": [[""]], "lengths": [-1]}"#,
        r#"{"images": [[]], "prompts": [["<image>"]], "captions": [["x"]], "ids": ["a", "b"]}"#,
    ] {
        let copy = Copied::new();
        copy.rewrite(pack.shard, &pack.key, |members| {
            members.last_mut().unwrap().1 = text.as_bytes().to_vec()
        });
        let report = copy.verify();
        assert!(
            report.faults.iter().any(|fault| fault.key.as_ref() == Some(&pack.key)),
            "{:#?}",
            report.faults
        );
    }
}

#[test]
fn a_view_in_place_of_a_table_is_not_queried() {
    let copy = Copied::new();
    let endless = "DROP TABLE samples; CREATE VIEW samples AS WITH RECURSIVE n(tar_file_id) AS \
                   (SELECT 0 UNION ALL SELECT tar_file_id + 1 FROM n) SELECT * FROM n;";
    rusqlite::Connection::open(copy.meta("index.sqlite")).unwrap().execute_batch(endless).unwrap();
    copy.assert_fault("sqlite", "index.sqlite", None);
}

#[test]
fn a_folder_that_is_no_set_is_an_error_with_help() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("absent")] {
        let error = verify(&VerifyOptions::new(path)).unwrap_err();
        assert!(error.help().is_some(), "{error}");
        assert_eq!(error.exit_code(), packd::exit::NO_INPUT);
    }
}
