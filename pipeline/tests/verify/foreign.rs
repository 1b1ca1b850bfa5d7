//! Sets that packd did not write: no keys of its own, no tables, no run.

use std::path::PathBuf;

use packd::contracts::{Counter, CounterOptions, Frames, ImageGrid, ImageRef, ImageSize, Sample};
use packd::sinks::SampleType;
use packd::{Error, IndexOptions, VerifyOptions, index, verify};
use serde_json::Value;
use tempfile::TempDir;

use crate::set::{SEQ_LEN, finished, pack_where, packs, rewrite_all, rewrite_tar};

/// The shards with only the keys that the reference scripts write.
fn foreign() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    for shard in 0..=packs().last().unwrap().shard {
        let name = format!("ps-{shard:06}.tar");
        std::fs::copy(finished().join("node_000/webdataset").join(&name), root.join(&name)).unwrap();
        rewrite_all(&root.join(&name), |_, members| {
            let bytes = &mut members.last_mut().unwrap().1;
            let mut json: Value = serde_json::from_slice(bytes).unwrap();
            let known =
                ["images", "prompts", "captions", "sample_count", "patch_positions", "timestamp_decimal"];
            json.as_object_mut().unwrap().retain(|key, _| known.contains(&key.as_str()));
            *bytes = serde_json::to_vec(&json).unwrap();
        });
    }
    (folder, root)
}

#[test]
fn seq_len_must_be_given_and_is_checked() {
    let (_keep, root) = foreign();
    index(&IndexOptions::new(&root)).unwrap();
    let error = verify(&VerifyOptions::new(&root)).unwrap_err();
    assert!(matches!(error, Error::NotSet { key: "seq_len", .. }), "{error}");
    assert!(error.help().unwrap().contains("--seq-len"));
    let at = |seq_len| VerifyOptions { seq_len: Some(seq_len), ..VerifyOptions::new(&root) };
    let report = verify(&at(SEQ_LEN)).unwrap();
    assert!(report.passed(), "{:#?}", report.faults);
    assert_eq!(
        (report.recounted, report.tokens),
        (report.packs, packs().iter().map(|pack| pack.total()).sum())
    );
    let longest = packs().iter().map(|pack| pack.total()).max().unwrap();
    let report = verify(&at(longest as u32 - 1)).unwrap();
    let over: Vec<String> =
        packs().into_iter().filter(|pack| pack.total() == longest).map(|pack| pack.key).collect();
    assert_eq!(report.faults.iter().filter_map(|fault| fault.key.clone()).collect::<Vec<_>>(), over);
    // Another processor's limits make images larger than they were packed for.
    let report = verify(&VerifyOptions { min_pixels: Some(1_000_000), ..at(SEQ_LEN) }).unwrap();
    let with_images: Vec<String> =
        packs().into_iter().filter(|pack| pack.has_images()).map(|pack| pack.key).collect();
    assert_eq!(report.faults.iter().filter_map(|fault| fault.key.clone()).collect::<Vec<_>>(), with_images);
    assert!(report.faults.iter().all(|fault| fault.kind.code() == "over-seq-len"));
}

/// An array of positions as NumPy writes it: the first half of the patches is of frame 0, the others of frame 30.
fn two_frames(grid: ImageGrid) -> (Vec<u8>, Vec<[i64; 3]>) {
    let patches = i64::from(grid.h * grid.w);
    let row = |at: i64| [30 * i64::from(2 * at >= patches), at / i64::from(grid.w), at % i64::from(grid.w)];
    let rows: Vec<[i64; 3]> = (0..patches).map(row).collect();
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({patches}, 3), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(rows.as_flattened().iter().flat_map(|value| value.to_le_bytes()));
    (bytes, rows)
}

#[test]
fn packs_of_video_frames_are_counted_by_their_positions() {
    let (_keep, root) = foreign();
    let pack =
        pack_where(|pack| pack.parts.contains_key("img0_0.jpg") && !pack.parts.contains_key("img0_1.jpg"));
    let counter = Counter::new(&CounterOptions::default()).unwrap();
    let texts = |field: &str| -> Vec<String> { serde_json::from_value(pack.json[field][0].clone()).unwrap() };
    let sample = Sample {
        prompts: texts("prompts"),
        captions: texts("captions"),
        images: vec![ImageRef::Inline(Vec::new())],
        ..Sample::default()
    };
    let (path, (offset, size)) = (root.join(format!("ps-{:06}.tar", pack.shard)), pack.parts["img0_0.jpg"]);
    let image = std::fs::read(&path).unwrap()[offset as usize..][..size as usize].to_vec();
    let picture = image::load_from_memory(&image).unwrap();
    let sizes = [ImageSize::new(picture.width(), picture.height())];
    let (array, rows) = two_frames(counter.images().grid(sizes[0]).unwrap());
    let frames = Frames { positions: vec![Some(rows)], fps: Some(30.0), timestamp_decimal: Some(2) };
    let longer = counter.count_frames(&sample, &sizes, &frames).unwrap().length
        - counter.count(&sample, &sizes).unwrap().length;
    // `<0.00 seconds>` and `<1.00 seconds>`, and one more block.
    assert!(longer > 10, "{longer}");
    let with_frames = |array: &[u8]| {
        rewrite_tar(&path, &pack.key, |members| {
            members.retain(|(name, _)| name != "img0_0.npy");
            let json = &mut members.last_mut().unwrap().1;
            let mut packed: Value = serde_json::from_slice(json).unwrap();
            let others = packed["prompts"].as_array().unwrap().len() - 1;
            packed["fps"] = [Value::from(vec![30])].into_iter().chain(vec![Value::Null; others]).collect();
            packed["timestamp_decimal"][0] = 2.into();
            packed["patch_positions"][0] = vec!["frames.npy"].into();
            *json = serde_json::to_vec(&packed).unwrap();
            members.insert(0, ("img0_0.npy".into(), array.to_vec()));
        });
        index(&IndexOptions::new(&root)).unwrap();
        verify(&VerifyOptions { seq_len: Some(pack.total() as u32), ..VerifyOptions::new(&root) }).unwrap()
    };
    let report = with_frames(&array);
    assert_eq!(report.recounted, report.packs);
    let fault = report.faults.iter().find(|fault| fault.key.as_ref() == Some(&pack.key)).unwrap();
    assert!(fault.detail.starts_with(&format!("{} tokens", pack.total() + u64::from(longer))), "{fault}");
    let report = with_frames(&[0; 200]);
    let fault = report.faults.iter().find(|fault| fault.key.as_ref() == Some(&pack.key)).unwrap();
    assert_eq!(fault.kind.code(), "uncountable");
    assert!(fault.detail.contains("img0_0.npy: patch positions: this is no .npy file"), "{fault}");
}

#[test]
fn without_an_index_it_says_how_to_make_one() {
    let (_keep, root) = foreign();
    let report = verify(&VerifyOptions { seq_len: Some(SEQ_LEN), ..VerifyOptions::new(&root) }).unwrap();
    assert!(report.faults[0].detail.contains("packd index"), "{:?}", report.faults);
    assert!(report.faults.iter().skip(1).all(|fault| fault.kind.code() == "tar-idx"));
    assert_eq!(report.packs, packs().len() as u64);
}

#[test]
fn repeated_keys_are_found_by_verify_and_refused_by_index() {
    let (_keep, root) = foreign();
    index(&IndexOptions { no_sqlite: true, ..IndexOptions::new(&root) }).unwrap();
    std::fs::copy(root.join("ps-000000.tar"), root.join("ps-000001.tar")).unwrap();
    std::fs::copy(root.join("ps-000000.tar.idx"), root.join("ps-000001.tar.idx")).unwrap();
    let report = verify(&VerifyOptions { seq_len: Some(SEQ_LEN), ..VerifyOptions::new(&root) }).unwrap();
    let repeated: Vec<String> =
        packs().into_iter().filter(|pack| pack.shard == 0).map(|pack| pack.key).collect();
    let found: Vec<String> = (report.faults.iter().filter(|fault| fault.kind.code() == "duplicate-key"))
        .filter_map(|fault| fault.key.clone())
        .collect();
    assert_eq!(found, repeated);
    let error = index(&IndexOptions::new(&root)).unwrap_err().to_string();
    assert!(error.contains(&format!("{} in ps-000000.tar and ps-000001.tar", repeated[0])), "{error}");
}

#[test]
fn the_loader_of_the_reference_scripts_passes() {
    let (_keep, root) = foreign();
    index(&IndexOptions::new(&root)).unwrap();
    let loader = root.join(".nv-meta/sample_loader.py");
    let text = "import re\n\ndef part_filter(part: str) -> bool:\n    return True\n\ndef sample_loader(sample: dict) -> dict:\n    \
                data = sample[\"json\"]\n    return dict(\n        __key__=sample[\"__key__\"],\n        \
                __restore_key__=sample[\"__restore_key__\"],\n        images=[sample[f\"img{i}\"] for i in data],\n        \
                prompts=data[\"prompts\"],\n        captions=data[\"captions\"],\n    )\n";
    std::fs::write(&loader, text).unwrap();
    let options = VerifyOptions { seq_len: Some(SEQ_LEN), ..VerifyOptions::new(&root) };
    assert!(verify(&options).unwrap().passed());
    // Indexing again keeps the loader; asking for a class replaces it.
    index(&IndexOptions::new(&root)).unwrap();
    assert_eq!(std::fs::read_to_string(&loader).unwrap(), text);
    std::fs::write(&loader, text.replace("captions=", "answers=")).unwrap();
    let report = verify(&options).unwrap();
    assert_eq!(report.fault_count, 1, "{:#?}", report.faults);
    assert!(report.faults[0].detail.contains("returns answers"));
    index(&IndexOptions { sample_type: Some(SampleType::default()), ..IndexOptions::new(&root) }).unwrap();
    assert!(verify(&options).unwrap().passed());
}
