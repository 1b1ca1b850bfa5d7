//! Whatever the shape, the packing and the places of the blocks: the records come out as they went in, and
//! are found again by their offset.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;

use packd_sources::{
    FetchRequest, Input, ReadRange, RecordBlock, RecordFetcher, RecordReader, SpoolReader, SpoolWriter,
    expand,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const MAX_RECORD: usize = 1 << 20;

fn read(input: &Input, from: ReadRange) -> (Vec<RecordBlock>, bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut reader = RecordReader::open(input, 0, from, MAX_RECORD).await.unwrap();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block().await.unwrap() {
            blocks.push(block);
        }
        (blocks, reader.is_seekable())
    })
}

fn input(path: &Path) -> Input {
    expand(&[path.to_str().unwrap().to_owned()], &packd_storage::Stores::new(Default::default()).unwrap())
        .unwrap()
        .remove(0)
}

/// Offset, line and text of every record.
fn records(blocks: &[RecordBlock]) -> Vec<(u64, u64, Vec<u8>)> {
    let of = |block: &RecordBlock| -> Vec<_> {
        block
            .records
            .iter()
            .map(|record| (record.offset, record.line, block.bytes_of(record).to_vec()))
            .collect()
    };
    blocks.iter().flat_map(of).collect()
}

#[derive(Debug, Clone, Copy)]
enum Written {
    Lines { blank: bool, last_newline: bool, crlf: bool },
    Array,
    PrettyArray,
    PrettyObjects,
}

fn write(values: &[Value], written: Written, mark: bool) -> Vec<u8> {
    let mut text = if mark { "\u{feff}".to_owned() } else { String::new() };
    match written {
        Written::Lines { blank, last_newline, crlf } => {
            let end = if crlf { "\r\n" } else { "\n" };
            for value in values {
                text += &value.to_string();
                text += end;
                if blank {
                    text += "  ";
                    text += end;
                }
            }
            if !last_newline {
                text.truncate(text.trim_end().len());
            }
        }
        Written::Array => text += &Value::from(values).to_string(),
        Written::PrettyArray => text += &serde_json::to_string_pretty(values).unwrap(),
        Written::PrettyObjects => {
            for value in values {
                text += &serde_json::to_string_pretty(value).unwrap();
                text += "\n";
            }
        }
    }
    text.into_bytes()
}

fn compress(plain: &[u8], how: usize) -> Vec<u8> {
    use async_compression::tokio::write::{BzEncoder, GzipEncoder, XzEncoder, ZstdEncoder};
    use tokio::io::AsyncWriteExt;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    macro_rules! packed {
        ($encoder:ident) => {
            runtime.block_on(async {
                let mut encoder = $encoder::new(Vec::new());
                encoder.write_all(plain).await.unwrap();
                encoder.shutdown().await.unwrap();
                encoder.into_inner()
            })
        };
    }
    match how {
        1 => packed!(GzipEncoder),
        2 => packed!(ZstdEncoder),
        3 => packed!(XzEncoder),
        4 => packed!(BzEncoder),
        // Two members one after another are one file (`cat a.gz b.gz`).
        5 => {
            let (first, second) = plain.split_at(plain.len() / 2);
            [compress(first, 1), compress(second, 1)].concat()
        }
        _ => plain.to_vec(),
    }
}

fn shapes() -> impl Strategy<Value = Written> {
    prop_oneof![
        any::<(bool, bool, bool)>().prop_map(|(blank, last_newline, crlf)| Written::Lines {
            blank,
            last_newline,
            crlf
        }),
        Just(Written::Array),
        Just(Written::PrettyArray),
        Just(Written::PrettyObjects),
    ]
}

fn values() -> impl Strategy<Value = Vec<Value>> {
    let text = prop_oneof!["[ -~]{0,40}", "\\PC{0,20}", "(\\\\|\"|\\{|\\}|\\[|\\]|,|\n){0,12}"];
    let record = (text, any::<i32>(), 0_usize..60_000).prop_map(|(text, number, filler)| {
        let filler = if number % 7 == 0 { "x".repeat(filler) } else { String::new() };
        json!({"text": text, "more": [{"n": number}, [text]], "filler": filler})
    });
    proptest::collection::vec(record, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn records_come_out_as_they_went_in(
        values in values(), written in shapes(), mark in any::<bool>(), how in 0_usize..6, pick in any::<u64>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let plain = write(&values, written, mark);
        std::fs::File::create(&path).unwrap().write_all(&compress(&plain, how)).unwrap();
        let input = input(&path);

        let (blocks, seekable) = read(&input, ReadRange::default());
        let found = records(&blocks);
        prop_assert!(blocks.iter().all(|block| block.unreadable.is_empty()));
        prop_assert_eq!(blocks.iter().filter(|block| block.end_of_source).count(), 1);
        prop_assert_eq!(found.len(), values.len());
        for ((offset, line, bytes), value) in found.iter().zip(&values) {
            prop_assert_eq!(&serde_json::from_slice::<Value>(bytes).unwrap(), value);
            let start = *offset as usize;
            prop_assert_eq!(&plain[start..start + bytes.len()], bytes.as_slice());
            let lines = plain[..start].iter().filter(|byte| **byte == b'\n').count() as u64;
            prop_assert_eq!(*line, lines + 1);
        }

        // Reading goes on where any block ended.
        let stopped = pick as usize % blocks.len();
        let from = ReadRange { offset: blocks[stopped].end_offset, line: blocks[stopped].end_line, end: None };
        if !blocks[stopped].end_of_source {
            let (rest, _) = read(&input, from);
            let known = records(&blocks[..=stopped]).len();
            prop_assert_eq!(records(&rest), &found[known..]);
            // In the same blocks: what is committed together does not depend on where reading began.
            let borders = |blocks: &[RecordBlock]| -> Vec<_> {
                blocks.iter().map(|block| (block.end_offset, block.end_line, block.records.len())).collect()
            };
            prop_assert_eq!(borders(&rest), borders(&blocks[stopped + 1..]));
        }

        // In any order, from the file or from a spool.
        let spools = if seekable { Vec::new() } else {
            let spool = folder.path().join("spool");
            let mut writer = SpoolWriter::new(Vec::new());
            blocks.iter().for_each(|block| writer.add(block).unwrap());
            std::fs::write(&spool, writer.finish().unwrap()).unwrap();
            vec![SpoolReader::open(&spool).unwrap()]
        };
        let fetcher = RecordFetcher::new(vec![input], vec![seekable], spools);
        let order: Vec<usize> = (0..found.len()).map(|n| (n * 7 + pick as usize % 5) % found.len()).collect();
        let request = |&n: &usize| FetchRequest { source: 0, offset: found[n].0, len: found[n].2.len() as u32 };
        let fetched = fetcher.fetch(&order.iter().map(request).collect::<Vec<_>>()).unwrap();
        for (n, bytes) in order.iter().zip(fetched) {
            prop_assert_eq!(&bytes[..], found[*n].2.as_slice());
        }
    }

    /// Nothing panics and no byte is lost sight of, whatever the file holds.
    #[test]
    fn any_bytes_are_read_to_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..3000), start in 0_usize..4) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let head: &[u8] = [b"".as_slice(), b"[{", b"{\n", b"\x1f\x8b\x08"][start];
        std::fs::write(&path, [head, &bytes].concat()).unwrap();
        let (blocks, _) = read(&input(&path), ReadRange::default());
        prop_assert!(blocks.last().is_some_and(|block| block.end_of_source));
    }
}

#[test]
fn an_input_that_changed_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl");
    std::fs::write(&path, "{\"a\": 1}\n").unwrap();
    let input = input(&path);
    std::fs::write(&path, "{\"a\": 22}\n").unwrap();
    let fetcher = RecordFetcher::new(vec![input], vec![true], Vec::new());
    let error = fetcher.fetch(&[FetchRequest { source: 0, offset: 0, len: 8 }]).unwrap_err();
    assert!(error.to_string().contains("it had 9 bytes when its records were measured, now 10"), "{error}");
}

#[test]
fn a_pipe_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let error = expand(
        &[path.to_str().unwrap().to_owned()],
        &packd_storage::Stores::new(Default::default()).unwrap(),
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("pipe: is not a regular file"), "{error}");
}
