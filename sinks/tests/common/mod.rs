//! Packed samples to write, with image files on the disk.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use packd_contracts::{ImageRef, Sample};
use packd_sinks::{
    PackedSample, SampleClass, ShardCommit, ShardOptions, ShardWriter, SubSample, pack_key, shard_name,
};
use packd_sources::{ImageStore, ImageStoreOptions, LoadedImages};

pub(crate) fn options() -> ShardOptions {
    ShardOptions { class: SampleClass::Packed, passthrough: Vec::new() }
}

pub(crate) fn store(folder: &Path) -> ImageStore {
    ImageStore::new(
        &ImageStoreOptions::default(),
        &[folder.to_owned()],
        &packd_storage::Stores::new(Default::default()).unwrap(),
    )
    .unwrap()
}

/// Bytes that start as a JPEG and end in noise.
pub(crate) fn image_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut bytes: Vec<u8> = (0..n)
        .map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        })
        .collect();
    let head = &b"\xff\xd8\xff\xe0"[..n.min(4)];
    bytes[..head.len()].copy_from_slice(head);
    bytes
}

pub(crate) fn sub_sample(ordinal: u64, length: u32, images: Vec<ImageRef>) -> SubSample {
    SubSample {
        ordinal,
        source: "d.jsonl".into(),
        source_index: 0,
        offset: ordinal * 100,
        line: ordinal + 1,
        length,
        patches: 4 * images.len() as u32,
        sample: Sample {
            id: Some(format!("id-{ordinal}")),
            prompts: vec![format!("{}what?", "<image>".repeat(images.len()))],
            captions: vec![format!("answer {ordinal} é")],
            images,
            ..Sample::default()
        },
        image_stamp: None,
    }
}

/// Pack `n`: a text-only sub-sample, one with a file of `n · 40,000 + 1` bytes, one with two inline images.
pub(crate) fn packed(folder: &Path, n: u64) -> PackedSample {
    let file = format!("{n}.jpg");
    fs::write(folder.join(&file), image_bytes(n as usize * 40_000 + 1, n)).unwrap();
    PackedSample {
        key: pack_key("p", n),
        pack: n,
        sub_samples: vec![
            sub_sample(3 * n, 10, vec![]),
            sub_sample(3 * n + 1, 20, vec![ImageRef::Path(file)]),
            sub_sample(
                3 * n + 2,
                5,
                vec![
                    ImageRef::Inline(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec()),
                    ImageRef::Inline(image_bytes(512, 7)),
                ],
            ),
        ],
    }
}

/// Shard `number` with `packs` packed samples, numbered on from `number · packs`.
pub(crate) fn write_shard(folder: &Path, number: u64, packs: u64) -> ShardCommit {
    let mut shard = ShardWriter::create(folder, &shard_name("p", number), options()).unwrap();
    for n in number * packs..(number + 1) * packs {
        shard.append(&packed(folder, n), &store(folder), &LoadedImages::default()).unwrap();
    }
    shard.finish().unwrap()
}
