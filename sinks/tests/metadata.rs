//! The `.nv-meta` folder and the tables, read back with other readers.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;

use common::write_shard;
use packd_sinks::{
    BinsWriter, EnergonOptions, LengthRow, LengthsWriter, SampleType, ShardCommit, ShardIndex, SinkError,
    SqliteOptions, write_energon_metadata,
};
use parquet::file::reader::{FileReader, SerializedFileReader};

fn options(scratch: &Path) -> EnergonOptions {
    EnergonOptions {
        sample_type: Some(SampleType::default()),
        val_fraction: 0.0,
        sqlite: Some(SqliteOptions { scratch: scratch.to_owned(), expected_parts: 100 }),
    }
}

fn write(folder: &Path, shards: &[ShardCommit], options: &EnergonOptions) -> Result<(u64, u64), SinkError> {
    let indexes = shards.iter().map(|shard| Ok::<&ShardIndex, SinkError>(&shard.index));
    write_energon_metadata(folder, indexes, options).map(|s| (s.train_samples, s.val_samples))
}

#[test]
fn every_file_of_nv_meta() {
    let [folder, scratch] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let folder = folder.path();
    let shards: Vec<_> = (0..3).map(|n| write_shard(folder, n, 2)).collect();
    assert_eq!(write(folder, &shards, &options(scratch.path())).unwrap(), (6, 0));
    let read = |name: &str| fs::read_to_string(folder.join(".nv-meta").join(name)).unwrap();
    assert_eq!(
        read(".info.json"),
        "{\n  \"energon_version\": \"7.4.1\",\n  \"shard_counts\": {\n    \"p-000000.tar\": 2,\n    \
         \"p-000001.tar\": 2,\n    \"p-000002.tar\": 2\n  }\n}"
    );
    assert_eq!(
        read("split.yaml"),
        "split_parts:\n  train:\n  - p-{000000..000002}.tar\n  val: []\n  test: []\nexclude: []\n"
    );
    assert_eq!(
        read(".info.yaml"),
        "energon_version: \"7.4.1\"\nshard_counts:\n  p-000000.tar: 2\n  p-000001.tar: 2\n  p-000002.tar: 2\n"
    );
    assert!(
        read("dataset.yaml")
            .contains("__class__: PackedCaptioningSample\npart_filter: sample_loader.py:part_filter")
    );
    let uuid = read("index.uuid");
    assert_eq!((uuid.len(), &uuid[14..15]), (36, "5"));
    assert!(read("sample_loader.py").contains("def sample_loader(raw: dict)"));
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn the_sqlite_index_has_energons_schema_and_a_row_a_member() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shards: Vec<_> = (0..2).map(|n| write_shard(folder, n, 3)).collect();
    write(folder, &shards, &options(folder)).unwrap();
    let db = rusqlite::Connection::open(folder.join(".nv-meta/index.sqlite")).unwrap();
    let list = |sql: &str| -> Vec<String> {
        let mut query = db.prepare(sql).unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(
        list("SELECT name || ' ' || type || ' ' || [notnull] FROM pragma_table_info('samples')"),
        [
            "tar_file_id INTEGER 1",
            "sample_key TEXT 1",
            "sample_index INTEGER 1",
            "byte_offset INTEGER 0",
            "byte_size INTEGER 0"
        ]
    );
    assert_eq!(
        list("SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY name"),
        [
            "idx_sample_parts_full",
            "idx_sample_parts_seq",
            "idx_samples_by_tar_and_idx",
            "sqlite_autoindex_samples_1"
        ]
    );
    let samples = list(
        "SELECT concat_ws(' ', tar_file_id, sample_key, sample_index, byte_offset, byte_size) FROM samples ORDER BY rowid",
    );
    let want: Vec<String> = shards
        .iter()
        .enumerate()
        .flat_map(|(t, shard)| {
            let row = move |(i, s): (usize, &packd_sinks::IndexedSample)| {
                format!("{t} {} {i} {} {}", s.key, s.offset, s.size)
            };
            shard.index.samples.iter().enumerate().map(row)
        })
        .collect();
    assert_eq!(samples, want);
    assert_eq!(list("SELECT CAST(count(*) AS TEXT) FROM sample_parts"), ["24"]);
    assert_eq!(
        list(
            "SELECT part_name FROM sample_parts WHERE tar_file_id = 1 AND sample_index = 2 ORDER BY rowid LIMIT 4"
        ),
        ["img1_0.jpg", "img2_0.jpg", "img2_1.jpg", "json"]
    );
    assert_eq!(list("PRAGMA integrity_check"), ["ok"]);
}

#[test]
fn the_same_shards_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shards: Vec<_> = (0..2).map(|n| write_shard(folder, n, 3)).collect();
    let mut runs = Vec::new();
    for _ in 0..2 {
        write(folder, &shards, &options(folder)).unwrap();
        let files = ["index.sqlite", "index.uuid", ".info.json", "split.yaml"];
        runs.push(files.map(|name| fs::read(folder.join(".nv-meta").join(name)).unwrap()));
        fs::remove_dir_all(folder.join(".nv-meta")).unwrap();
    }
    assert!(runs[0] == runs[1]);
}

#[test]
fn whole_shards_go_to_val_and_an_empty_split_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let shards: Vec<_> = (0..4).map(|n| write_shard(folder, n, 1)).collect();
    let with = |val_fraction| EnergonOptions { val_fraction, ..EnergonOptions::default() };
    assert_eq!(write(folder, &shards, &with(0.25)).unwrap(), (3, 1));
    let split = fs::read_to_string(folder.join(".nv-meta/split.yaml")).unwrap();
    assert!(split.contains("  - p-{000000..000002}.tar\n  val:\n  - p-000003.tar\n"), "{split}");
    for (fraction, empty) in [(0.01, "val"), (0.99, "train")] {
        let error = write(folder, &shards, &with(fraction)).unwrap_err().to_string();
        assert!(error.contains(&format!("leaves {empty} empty")), "{error}");
    }
    assert!(write(folder, &shards, &with(1.0)).is_err());
    assert!(write(folder, &[], &with(0.0)).unwrap_err().to_string().contains("no shards"));
    let unsorted = [shards[1].clone(), shards[0].clone()];
    assert!(write(folder, &unsorted, &with(0.0)).unwrap_err().to_string().contains("order of names"));
}

#[test]
fn a_duplicate_key_is_named_and_short_scratch_space_is_told_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut shards: Vec<_> = (0..2).map(|n| write_shard(folder, n, 2)).collect();
    shards[1].index.samples[1].key = "p_000000001".into();
    let error = write(folder, &shards, &options(folder)).unwrap_err();
    let SinkError::DuplicateKey { shard, key } = &error else { panic!("{error}") };
    assert_eq!((shard.as_str(), key.as_str()), ("p-000001.tar", "p_000000001"));
    assert!(!folder.join(".nv-meta/index.sqlite").exists());

    let mut options = options(folder);
    options.sqlite = Some(SqliteOptions { scratch: folder.to_owned(), expected_parts: 1 << 50 });
    assert!(write(folder, &shards, &options).unwrap_err().to_string().contains("scratch space"));
}

#[test]
fn tables_read_back_and_are_the_same_twice() {
    let folder = tempfile::tempdir().unwrap();
    let shards = [write_shard(folder.path(), 0, 3), write_shard(folder.path(), 1, 3)];
    let mut runs = Vec::new();
    for run in 0..2 {
        let [lengths, bins] =
            ["lengths", "bins"].map(|name| folder.path().join(format!("{name}-{run}.parquet")));
        let mut table = LengthsWriter::create(&lengths).unwrap();
        for n in 0..200_000 {
            let id = (n % 3 > 0).then(|| format!("id {n}"));
            let row = LengthRow {
                ordinal: n,
                source: if n < 1000 { "a.jsonl" } else { "b.jsonl" },
                line: n + 1,
                byte_offset: u64::MAX - n,
                id: id.as_deref(),
                length: u32::MAX,
                text_tokens: 7,
                image_tokens: 8,
                images: 1,
                patches: 32,
                stored_bytes: 1024,
                rounds_dropped: 0,
            };
            table.push(&row).unwrap();
        }
        assert!(!lengths.exists());
        assert_eq!(table.finish().unwrap(), 200_000);
        let mut table = BinsWriter::create(&bins).unwrap();
        for shard in &shards {
            table.push_shard(shard, &["d.jsonl"]).unwrap();
        }
        assert_eq!(table.finish().unwrap(), 18);
        runs.push([lengths, bins].map(|path| fs::read(path).unwrap()));
    }
    assert!(runs[0] == runs[1]);

    let open =
        |name: &str| SerializedFileReader::new(fs::File::open(folder.path().join(name)).unwrap()).unwrap();
    let lengths = open("lengths-0.parquet");
    assert_eq!(lengths.metadata().num_row_groups(), 2);
    assert_eq!(lengths.metadata().file_metadata().created_by(), Some("packd"));
    let last = lengths.get_row_iter(None).unwrap().last().unwrap().unwrap().to_string();
    assert_eq!(
        last,
        "{ordinal: 199999, source: \"b.jsonl\", line: 200000, byte_offset: 18446744073709351616, id: \"id 199999\", \
         length: 4294967295, text_tokens: 7, image_tokens: 8, images: 1, patches: 32, stored_bytes: 1024, rounds_dropped: 0}"
    );
    let bins = open("bins-0.parquet");
    let row = bins.get_row_iter(None).unwrap().nth(10).unwrap().unwrap().to_string();
    assert_eq!(
        row,
        "{pack: 3, key: \"p_000000003\", shard: \"p-000001.tar\", position: 1, ordinal: 10, source: \"d.jsonl\", line: 11, \
         byte_offset: 1000, id: \"id-10\", start: 10, length: 20, images: 1, patches: 4}"
    );
}
