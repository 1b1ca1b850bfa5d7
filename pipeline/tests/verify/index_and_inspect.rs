//! `index` gives what the run wrote; `inspect` shows what the tars hold; the command's exit codes.

use packd::{IndexOptions, index, inspect_sample, inspect_set};

use crate::common::{assert_same_tree, packd};
use crate::set::{Copied, finished, pack_where, packs};

#[test]
fn indexing_again_gives_the_same_bytes() {
    let copy = Copied::new();
    for name in ["index.sqlite", ".info.json", ".info.yaml", "split.yaml", "index.uuid"] {
        std::fs::remove_file(copy.meta(name)).unwrap();
    }
    std::fs::write(copy.shards().join("ps-000000.tar.idx"), "wrong").unwrap();
    let summary = index(&IndexOptions::new(copy.shards())).unwrap();
    assert_eq!((summary.train_samples, summary.val_samples), (packs().len() as u64, 0));
    assert_same_tree(finished(), copy.root(), "indexed again");
    assert!(copy.verify().passed());
}

#[test]
fn without_a_dataset_yaml_the_class_is_told_by_the_parts() {
    let copy = Copied::new();
    std::fs::remove_dir_all(copy.shards().join(".nv-meta")).unwrap();
    index(&IndexOptions::new(copy.shards())).unwrap();
    assert_same_tree(finished(), copy.root(), "indexed from nothing");
    let error = index(&IndexOptions::new(copy.root())).unwrap_err();
    assert!(error.help().unwrap().contains("node_000/webdataset"), "{error}");
}

#[test]
fn one_packed_sample_is_shown_with_and_without_the_database() {
    let pack = pack_where(|pack| pack.shard == 1 && pack.has_images());
    let copy = Copied::new();
    let shown = inspect_sample(copy.root(), &pack.key).unwrap();
    assert_eq!(shown.shard, "node_000/webdataset/ps-000001.tar");
    assert_eq!(shown.length, Some(pack.total()));
    assert_eq!(shown.sub_samples.len() as u64, pack.json["sample_count"].as_u64().unwrap());
    let images: Vec<_> = shown.sub_samples.iter().flat_map(|sub| &sub.images).collect();
    assert_eq!(images.len(), pack.parts.len() - 1);
    for image in images {
        assert_eq!(image.bytes, pack.parts[&image.part].1);
        assert!(image.size.is_some() && image.problem.is_none(), "{image:?}");
    }
    std::fs::remove_file(copy.meta("index.sqlite")).unwrap();
    assert_eq!(inspect_sample(copy.root(), &pack.key).unwrap(), shown);
    assert!(inspect_sample(copy.root(), "ps_00000000").unwrap_err().to_string().contains("no shard holds"));
    let set = inspect_set(copy.root()).unwrap();
    assert_eq!(set.packs, packs().len() as u64);
    assert_eq!(set.shards.len(), packs().last().unwrap().shard + 1);
}

#[test]
fn the_commands_say_what_they_found() {
    let copy = Copied::new();
    let run = |arguments: &[&str]| {
        let done = packd(copy.root()).args(arguments).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (status, said) = run(&["verify", "."]);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("no faults"), "{said}");
    let key = pack_where(|pack| pack.has_images()).key;
    let (status, said) = run(&["inspect", ".", &key]);
    assert_eq!(status, 0);
    assert!(said.contains("cu_lengths") && said.contains("img") && said.contains(" px"), "{said}");
    assert!(run(&["inspect", "."]).1.contains("packed samples"));
    assert_eq!(run(&["index", "node_000/webdataset"]).0, 0);
    std::fs::remove_file(copy.shards().join("ps-000000.tar.idx")).unwrap();
    let (status, said) = run(&["verify", "."]);
    assert_eq!(status, 1);
    assert!(said.contains("fault tar-idx: node_000/webdataset/ps-000000.tar.idx"), "{said}");
    let (status, said) = run(&["verify", ".", "--json"]);
    assert_eq!(status, 1);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&json["fault_count"], &json["faults"][0]["kind"]), (&1.into(), &"tar-idx".into()));
}
