//! temporary
#![allow(missing_docs, clippy::unwrap_used)]
use packd_contracts::{ImageRef, Sample};
use packd_sinks::*;
use packd_sources::{ImageStore, ImageStoreOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (input, out, class, threads, per): (_, PathBuf, _, usize, usize) =
        (Path::new(&a[1]), (&a[2]).into(), &a[3], a[4].parse().unwrap(), a[5].parse().unwrap());
    let text = std::fs::read_to_string(input).unwrap();
    let subs: Vec<SubSample> = text
        .lines()
        .enumerate()
        .map(|(i, l)| {
            let r: serde_json::Value = serde_json::from_str(l).unwrap();
            let t = |role: &str| {
                r["messages"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|m| m["role"] == role)
                    .map(|m| m["content"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            let images: Vec<_> = r["images"]
                .as_array()
                .map(|v| v.iter().map(|p| ImageRef::Path(p.as_str().unwrap().into())).collect())
                .unwrap_or_default();
            SubSample {
                ordinal: i as u64,
                source: a[1].as_str().into(),
                source_index: 0,
                offset: 0,
                line: i as u64 + 1,
                length: 100,
                patches: 1,
                image_sizes: None,
                sample: Sample {
                    id: r["id"].as_str().map(String::from),
                    prompts: t("user"),
                    captions: t("assistant"),
                    images,
                    ..Default::default()
                },
            }
        })
        .collect();
    let packs: Vec<PackedSample> = subs
        .chunks(5)
        .enumerate()
        .map(|(n, c)| PackedSample {
            key: pack_key("packd", n as u64),
            pack: n as u64,
            sub_samples: c.to_vec(),
        })
        .collect();
    let store =
        ImageStore::new(&ImageStoreOptions::default(), &[input.parent().unwrap().to_owned()]).unwrap();
    let sample_class = if class == "crude" { SampleClass::Crude } else { SampleClass::Packed };
    let folder = out.join("node_000/webdataset");
    create_folder(&folder).unwrap();
    let t = Instant::now();
    let shards: Vec<_> = packs.chunks(per).enumerate().collect();
    let next = std::sync::Mutex::new(shards.into_iter());
    let commits = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let Some((n, packs)) = next.lock().unwrap().next() else { break };
                    let mut w = ShardWriter::create(
                        &folder,
                        &shard_name("packd", n as u64),
                        ShardOptions { class: sample_class, passthrough: vec![] },
                    )
                    .unwrap();
                    for p in packs {
                        w.append(p, &store).unwrap();
                    }
                    let written = t.elapsed();
                    let c = w.finish().unwrap();
                    eprintln!(
                        "shard {n} {} MB written {written:.2?} finished {:.2?}",
                        c.index.size >> 20,
                        t.elapsed()
                    );
                    commits.lock().unwrap().push(c);
                }
            });
        }
    });
    let mut commits = commits.into_inner().unwrap();
    commits.sort_by(|a, b| a.index.name.cmp(&b.index.name));
    let cpu = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = cpu.rsplit(')').next().unwrap().split_whitespace().collect();
    println!("shards {:.3?} utime+stime {} {} (1/100 s)", t.elapsed(), f[11], f[12]);
    let t = Instant::now();
    let options = EnergonOptions {
        sample_type: Some(if class == "crude" { SampleType::Crude } else { SampleType::default() }),
        val_fraction: a.get(6).map_or(0.0, |v| v.parse().unwrap()),
        sqlite: Some(SqliteOptions { scratch: "/tmp".into(), expected_parts: 1 }),
    };
    let s = write_energon_metadata(&folder, commits.iter().map(|c| Ok::<_, SinkError>(&c.index)), &options)
        .unwrap();
    for (file, blend) in
        [("dataset.yaml", Blend::Epochized), ("blend.yaml", Blend::Weighted), ("v1.yaml", Blend::V1)]
    {
        write_metadataset(
            &out.join(file),
            &[MetadatasetEntry {
                path: "./node_000/webdataset".into(),
                train_weight: s.train_samples,
                val_weight: s.val_samples,
            }],
            blend,
        )
        .unwrap();
    }
    let mut bins = BinsWriter::create(&out.join("bins.parquet")).unwrap();
    for c in &commits {
        bins.push_shard(c, &["x"]).unwrap();
    }
    bins.finish().unwrap();
    println!("metadata {:.3?} {s:?}", t.elapsed());
    let mut sums = Checksums::default();
    for c in &commits {
        sums.add(format!("node_000/webdataset/{}", c.index.name), c.index.checksum.clone());
        sums.add(
            format!("node_000/webdataset/{}.idx", c.index.name),
            hash_file(&folder.join(format!("{}.idx", c.index.name))).unwrap(),
        );
    }
    for f in &s.files {
        sums.add(format!("node_000/webdataset/{f}"), hash_file(&folder.join(f)).unwrap());
    }
    sums.write(&out.join(Checksums::FILE_NAME)).unwrap();
    let t = Instant::now();
    for c in &commits {
        assert_eq!(scan_shard(&folder.join(&c.index.name)).unwrap(), c.index);
    }
    println!("scan {:.3?}", t.elapsed());
}
