//! One planted fault a test, each named and alone.

use packd::sinks::{LengthRow, LengthsWriter};
use packd::{VerifyOptions, verify};
use serde_json::json;

use crate::set::{Copied, SEQ_LEN, finished, pack_where, packs};

#[test]
fn an_untouched_output_has_no_faults() {
    let report = verify(&VerifyOptions::new(finished())).unwrap();
    assert!(report.passed(), "{:#?}", report.faults);
    let packs = packs();
    assert_eq!(report.packs, packs.len() as u64);
    assert_eq!(report.recounted, report.packs);
    assert_eq!((report.sub_samples, report.seq_len), (59, SEQ_LEN));
    assert_eq!(report.tokens, packs.iter().map(|pack| pack.total()).sum::<u64>());
    // A share of the packs is counted again, the same share every time.
    let share = |sample| verify(&VerifyOptions { sample, ..VerifyOptions::new(finished()) }).unwrap();
    let half = share(0.5);
    assert!(half.passed() && half.recounted > 0 && half.recounted < report.packs);
    assert_eq!(half, share(0.5));
    // The folder of the shards by itself finds the run it belongs to.
    let inner = verify(&VerifyOptions::new(finished().join("node_000/webdataset"))).unwrap();
    assert!(inner.passed() && inner.recounted == report.packs, "{:#?}", inner.faults);
}

#[test]
fn a_flipped_bit_in_an_image() {
    let pack = pack_where(|pack| pack.has_images());
    let copy = Copied::new();
    let (offset, size) =
        pack.parts.iter().find(|(name, _)| name.ends_with(".jpg")).map(|(_, place)| *place).unwrap();
    copy.edit(&copy.shard(pack.shard), |bytes| bytes[(offset + size * 3 / 4) as usize] ^= 1);
    copy.assert_fault("sample-changed", &format!("ps-{:06}.tar", pack.shard), Some(&pack.key));
}

#[test]
fn a_flipped_bit_in_a_json() {
    let pack = pack_where(|pack| pack.json["ids"][0].is_string());
    let copy = Copied::new();
    let (offset, size) = pack.parts["json"];
    copy.edit(&copy.shard(pack.shard), |bytes| {
        let json = &mut bytes[offset as usize..(offset + size) as usize];
        let at = json.windows(8).position(|window| window == b"\"ids\":[\"").unwrap();
        json[at + 8] ^= 1;
    });
    copy.assert_fault("sample-changed", &format!("ps-{:06}.tar", pack.shard), Some(&pack.key));
}

#[test]
fn a_flipped_bit_without_the_notes_of_the_run() {
    let pack = pack_where(|pack| pack.has_images());
    let copy = Copied::new();
    std::fs::remove_dir_all(copy.root().join("run/node_000/shards")).unwrap();
    let (offset, size) = pack.parts["img0_0.jpg"];
    copy.edit(&copy.shard(pack.shard), |bytes| bytes[(offset + size * 3 / 4) as usize] ^= 1);
    copy.assert_fault("file-changed", &format!("ps-{:06}.tar", pack.shard), None);
}

#[test]
fn a_truncated_tar() {
    let copy = Copied::new();
    copy.edit(&copy.shard(1), |bytes| bytes.truncate(bytes.len() / 2));
    let fault = copy.assert_fault("tar-damaged", "ps-000001.tar", None);
    assert!(fault.detail.contains("cut off"), "{fault}");
}

#[test]
fn a_missing_tar_and_a_missing_index() {
    let copy = Copied::new();
    std::fs::remove_file(copy.shard(0)).unwrap();
    copy.assert_fault("shard-missing", "ps-000000.tar", None);
    let copy = Copied::new();
    std::fs::remove_file(copy.shards().join("ps-000001.tar.idx")).unwrap();
    copy.assert_fault("tar-idx", "ps-000001.tar.idx", None);
}

#[test]
fn a_wrong_offset_in_the_index() {
    let copy = Copied::new();
    copy.edit(&copy.shards().join("ps-000000.tar.idx"), |bytes| bytes[9] ^= 2);
    let fault = copy.assert_fault("tar-idx", "ps-000000.tar.idx", None);
    let second = packs().into_iter().filter(|pack| pack.shard == 0).nth(1).unwrap();
    assert!(fault.detail.contains(&second.key), "{fault}");
}

#[test]
fn a_wrong_row_in_the_database() {
    let key = packs().into_iter().find(|pack| pack.shard == 1).unwrap().key;
    for (statement, named) in [
        (format!("UPDATE samples SET byte_offset = byte_offset + 512 WHERE sample_key = '{key}'"), Some(key.as_str())),
        (format!("UPDATE samples SET sample_key = 'x' WHERE sample_key = '{key}'"), Some(&key)),
        ("UPDATE sample_parts SET content_byte_size = 1 WHERE tar_file_id = 1 AND sample_index = 0 AND part_name = 'json'".into(), Some(&key)),
        ("DELETE FROM sample_parts WHERE tar_file_id = 1 AND sample_index = 0 AND part_name = 'json'".into(), Some(&key)),
        (format!("DELETE FROM samples WHERE sample_key = '{key}'"), Some(&key)),
        ("INSERT INTO samples VALUES (99, 'stray', 0, 0, 0)".into(), None),
        ("DROP INDEX idx_sample_parts_seq".into(), None),
        ("ALTER TABLE samples ADD COLUMN more INTEGER".into(), None),
    ] {
        let copy = Copied::new();
        rusqlite::Connection::open(copy.meta("index.sqlite")).unwrap().execute_batch(&statement).unwrap();
        if statement.contains("stray") {
            // A shard more, so every number of the database is in doubt.
            assert!(copy.verify().faults.iter().all(|fault| fault.kind.code() == "sqlite"));
            continue;
        }
        let fault = copy.assert_fault("sqlite", "index.sqlite", named);
        assert!(!fault.detail.contains("cannot be read"), "{fault}");
    }
}

#[test]
fn a_shard_missing_from_the_counts() {
    for (file, line) in
        [(".info.json", "    \"ps-000000.tar\": 6,\n"), (".info.yaml", "  ps-000000.tar: 6\n")]
    {
        let copy = Copied::new();
        let text = std::fs::read_to_string(copy.meta(file)).unwrap();
        let count = packs().iter().filter(|pack| pack.shard == 0).count();
        let line = line.replace('6', &count.to_string());
        assert!(text.contains(&line), "{text}");
        copy.replace(&copy.meta(file), &line, "");
        let fault = copy.assert_fault("shard-unlisted", file, None);
        assert!(fault.detail.contains("ps-000000.tar"), "{fault}");
        let copy = Copied::new();
        copy.replace(&copy.meta(file), &line, &line.replace(&count.to_string(), "99"));
        copy.assert_fault("info", file, None);
    }
    let copy = Copied::new();
    copy.replace(&copy.meta(".info.json"), "\"energon_version\"", "\"note\": 1, \"energon_version\"");
    copy.assert_fault("info", ".info.json", None);
}

#[test]
fn a_split_that_loses_or_repeats_a_shard() {
    let write = |train: &str| {
        let copy = Copied::new();
        let text = format!("split_parts:\n  train:\n{train}  val: []\n  test: []\nexclude: []\n");
        std::fs::write(copy.meta("split.yaml"), text).unwrap();
        copy
    };
    let last = packs().last().unwrap().shard;
    let all_but_first = format!("  - ps-{{000001..{last:06}}}.tar\n");
    let fault = write(&all_but_first).assert_fault("split", "split.yaml", None);
    assert!(fault.detail.contains("ps-000000.tar is in no split"), "{fault}");
    let twice = format!("{all_but_first}  - ps-000000.tar\n  - ps-000000.tar\n");
    assert!(write(&twice).assert_fault("split", "split.yaml", None).detail.contains("2 times"));
    let unknown = format!("  - ps-{{000000..{:06}}}.tar\n", last + 1);
    assert!(write(&unknown).assert_fault("split", "split.yaml", None).detail.contains("no such shard"));
}

#[test]
fn a_duplicate_key_is_named_with_both_shards() {
    let packs = packs();
    let first = &packs[0].key;
    let second = &packs.iter().find(|pack| pack.shard == 1).unwrap().key;
    let copy = Copied::new();
    copy.edit(&copy.shard(1), |bytes| {
        for at in (0..bytes.len()).step_by(512) {
            if bytes[at..].starts_with(format!("{second}.").as_bytes()) {
                bytes[at..at + first.len()].copy_from_slice(first.as_bytes());
                bytes[at + 148..at + 156].fill(b' ');
                let sum: u32 = bytes[at..at + 512].iter().map(|byte| u32::from(*byte)).sum();
                bytes[at + 148..at + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
    });
    let report = copy.verify();
    let fault = report.faults.iter().find(|fault| fault.kind.code() == "duplicate-key").unwrap();
    assert_eq!(fault.key.as_ref(), Some(first), "{fault}");
    assert!(fault.file.ends_with("ps-000001.tar") && fault.detail.contains("ps-000000.tar"), "{fault}");
    // The key that gave way is gone from tars and database.
    let others: Vec<&str> = report.faults.iter().map(|fault| fault.kind.code()).collect();
    assert_eq!(others, ["sqlite", "duplicate-key", "pack-missing"], "{:#?}", report.faults);
}

#[test]
fn a_pack_over_seq_len() {
    let packs = packs();
    let longest = packs.iter().map(|pack| pack.total()).max().unwrap();
    let options = VerifyOptions { seq_len: Some(longest as u32 - 1), ..VerifyOptions::new(finished()) };
    let report = verify(&options).unwrap();
    let named: Vec<&str> = report.faults.iter().filter_map(|fault| fault.key.as_deref()).collect();
    let over: Vec<&str> =
        packs.iter().filter(|pack| pack.total() == longest).map(|pack| pack.key.as_str()).collect();
    assert_eq!(named, over);
    assert!(report.faults.iter().all(|fault| fault.kind.code() == "over-seq-len"));
}

#[test]
fn other_limits_of_the_processor_name_the_packs_they_break() {
    let options = VerifyOptions {
        min_pixels: Some(1_000_000),
        max_pixels: Some(2_000_000),
        ..VerifyOptions::new(finished())
    };
    let report = verify(&options).unwrap();
    let named: Vec<&str> = report.faults.iter().filter_map(|fault| fault.key.as_deref()).collect();
    let with_images = packs().into_iter().filter(|pack| pack.has_images()).map(|pack| pack.key);
    assert_eq!(
        named,
        with_images.collect::<Vec<_>>(),
        "an image of a million pixels alone has over 1,024 tokens"
    );
    assert!(report.faults.iter().all(|fault| fault.kind.code() == "over-seq-len"));
    assert!(report.warnings.iter().any(|warning| warning.contains("other lengths")), "{:?}", report.warnings);
}

#[test]
fn missing_and_extra_members() {
    let pack = pack_where(|pack| pack.has_images());
    let shard = format!("ps-{:06}.tar", pack.shard);
    let image = pack.parts.keys().find(|name| name.ends_with(".jpg")).unwrap();
    let copy = Copied::new();
    copy.rewrite(pack.shard, &pack.key, |members| members.retain(|(name, _)| name != image));
    let fault = copy.assert_fault("member-missing", &shard, Some(&pack.key));
    assert!(fault.detail.contains(image), "{fault}");
    let copy = Copied::new();
    copy.rewrite(pack.shard, &pack.key, |members| members.insert(0, ("img77_0.jpg".into(), vec![1])));
    assert!(copy.assert_fault("member-extra", &shard, Some(&pack.key)).detail.contains("img77_0.jpg"));
    let copy = Copied::new();
    copy.rewrite(pack.shard, &pack.key, |members| members.retain(|(name, _)| name != "json"));
    copy.assert_fault("member-missing", &shard, Some(&pack.key));
}

#[test]
fn a_truncated_image() {
    let pack = pack_where(|pack| pack.has_images());
    let copy = Copied::new();
    copy.rewrite(pack.shard, &pack.key, |members| {
        let (_, bytes) = members.iter_mut().find(|(name, _)| name.ends_with(".jpg")).unwrap();
        bytes.truncate(bytes.len() / 2);
    });
    let fault = copy.assert_fault("image", &format!("ps-{:06}.tar", pack.shard), Some(&pack.key));
    assert!(fault.detail.contains("truncated"), "{fault}");
}

#[test]
fn a_lost_sub_sample() {
    // The last sub-sample is lost with all that belongs to it: only the tables can tell.
    let pack = pack_where(|pack| pack.json["sample_count"].as_u64() > Some(1));
    let last = pack.json["sample_count"].as_u64().unwrap() - 1;
    let offset = pack.json["sources"][last as usize][1].as_u64().unwrap();
    let copy = Copied::new();
    copy.rewrite(pack.shard, &pack.key, |members| {
        members.retain(|(name, _)| !name.starts_with(&format!("img{last}_")));
        let bytes = &mut members.last_mut().unwrap().1;
        let mut json: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        for (_, value) in json.as_object_mut().unwrap() {
            match value.as_array_mut() {
                Some(list) => drop(list.pop()),
                None => *value = json!(last),
            }
        }
        *bytes = serde_json::to_vec(&json).unwrap();
    });
    let fault = copy.assert_fault("sub-sample", &format!("ps-{:06}.tar", pack.shard), Some(&pack.key));
    let text = std::fs::read(finished().parent().unwrap().join("data.jsonl")).unwrap();
    let line = 1 + text[..offset as usize].iter().filter(|byte| **byte == b'\n').count();
    assert!(
        fault.detail.contains("is lost") && fault.detail.contains(&format!("data.jsonl:{line}")),
        "{fault}"
    );
}

#[test]
fn two_swapped_shards() {
    let copy = Copied::new();
    let aside = copy.root().join("aside");
    std::fs::rename(copy.shard(0), &aside).unwrap();
    std::fs::rename(copy.shard(1), copy.shard(0)).unwrap();
    std::fs::rename(&aside, copy.shard(1)).unwrap();
    let report = copy.verify();
    let said: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "shard-swapped: node_000/webdataset/ps-000000.tar: it holds what was written as node_000/webdataset/ps-000001.tar",
            "shard-swapped: node_000/webdataset/ps-000001.tar: it holds what was written as node_000/webdataset/ps-000000.tar",
        ]
    );
}

#[test]
fn wrong_numbers_in_the_json() {
    let pack = pack_where(|pack| pack.json["sample_count"].as_u64() > Some(1));
    let shard = format!("ps-{:06}.tar", pack.shard);
    let copy = Copied::new();
    copy.rewrite_json(pack.shard, &pack.key, |json| {
        json["lengths"][0] = json!(json["lengths"][0].as_u64().unwrap() + 1);
        for end in json["cu_lengths"].as_array_mut().unwrap().iter_mut().skip(1) {
            *end = json!(end.as_u64().unwrap() + 1);
        }
    });
    copy.assert_fault("length", &shard, Some(&pack.key));
    let copy = Copied::new();
    copy.rewrite_json(pack.shard, &pack.key, |json| json["cu_lengths"][1] = json!(1));
    copy.assert_fault("cu-lengths", &shard, Some(&pack.key));
    let copy = Copied::new();
    copy.rewrite_json(pack.shard, &pack.key, |json| json["captions"][0] = json!([]));
    copy.assert_fault("rounds", &shard, Some(&pack.key));
    let copy = Copied::new();
    copy.rewrite_json(pack.shard, &pack.key, |json| json["ids"][0] = json!("another"));
    copy.assert_fault("sub-sample", &shard, Some(&pack.key));
    let copy = Copied::new();
    copy.rewrite_json(pack.shard, &pack.key, |json| json["sample_count"] = json!(1));
    copy.assert_fault("json", &shard, Some(&pack.key));
}

#[test]
fn a_loader_that_returns_an_unknown_field() {
    let copy = Copied::new();
    let loader = copy.meta("sample_loader.py");
    copy.replace(
        &loader,
        "\"captions\": data[\"captions\"],",
        "\"captions\": data[\"captions\"], \"lengths\": data[\"lengths\"],",
    );
    let fault = copy.assert_fault("sample-loader", "sample_loader.py", None);
    assert!(fault.detail.contains("returns lengths"), "{fault}");
    let copy = Copied::new();
    copy.replace(&copy.meta("sample_loader.py"), "\"captions\": data[\"captions\"],", "");
    assert!(
        copy.assert_fault("sample-loader", "sample_loader.py", None)
            .detail
            .contains("does not return captions")
    );
    let copy = Copied::new();
    copy.replace(&copy.meta("sample_loader.py"), "data.get(\"fps\")", "None");
    assert!(copy.assert_fault("sample-loader", "sample_loader.py", None).detail.contains("was changed"));
}

#[test]
fn the_yaml_files() {
    let copy = Copied::new();
    copy.replace(&copy.meta("dataset.yaml"), "part_filter:", "filter:");
    copy.assert_fault("dataset-yaml", "dataset.yaml", None);
    let copy = Copied::new();
    copy.replace(&copy.root().join("dataset.yaml"), "node_000", "node_001");
    let report = copy.verify();
    assert_eq!(report.fault_count, 2, "{:#?}", report.faults);
    assert!(report.faults.iter().all(|fault| fault.kind.code() == "metadataset"));
    let copy = Copied::new();
    std::fs::remove_file(copy.root().join("dataset.yaml")).unwrap();
    copy.assert_fault("file-missing", "dataset.yaml", None);
}

#[test]
fn tables_and_rejects() {
    let copy = Copied::new();
    std::fs::remove_file(copy.root().join("lengths.parquet")).unwrap();
    copy.assert_fault("file-missing", "lengths.parquet", None);
    let copy = Copied::new();
    copy.edit(&copy.root().join("bins.parquet"), |bytes| bytes[100] ^= 1);
    copy.assert_fault("file-changed", "bins.parquet", None);
    let copy = Copied::new();
    std::fs::write(copy.root().join("rejects.jsonl"), "").unwrap();
    copy.assert_fault("file-changed", "rejects.jsonl", None);
    copy.renew_checksums();
    copy.assert_fault("records", "rejects.jsonl", None);
    // A table that knows of one sample only.
    let copy = Copied::new();
    let path = copy.root().join("lengths.parquet");
    std::fs::remove_file(&path).unwrap();
    let mut writer = LengthsWriter::create(&path).unwrap();
    let row = LengthRow {
        ordinal: 999,
        source: "x",
        line: 1,
        byte_offset: 0,
        id: None,
        length: 1,
        text_tokens: 1,
        image_tokens: 0,
        images: 0,
        patches: 0,
        stored_bytes: 0,
        rounds_dropped: 0,
    };
    writer.push(&row).unwrap();
    writer.finish().unwrap();
    copy.renew_checksums();
    let report = copy.verify();
    assert!(
        report.faults.iter().all(|fault| fault.kind.code() == "table") && !report.passed(),
        "{:#?}",
        report.faults
    );
    assert!(report.faults.iter().any(|fault| fault.detail.contains("sample 999 (x:1) is in no pack")));
}

#[test]
fn a_run_that_has_not_finished() {
    let copy = Copied::new();
    std::fs::remove_file(copy.root().join("checksums.xxh128")).unwrap();
    copy.assert_fault("unfinished", "checksums.xxh128", None);
}
