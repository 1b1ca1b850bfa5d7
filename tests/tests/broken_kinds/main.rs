//! What becomes of every broken kind of record and image, and that none takes a good record with it.
//!
//! `broken_kinds.json` holds the verdicts under each contract, at a `seq_len` of 4,096, and why they are
//! right. The kinds are those of the generator of real data, made small here.

#![allow(clippy::unwrap_used)]

mod pictures;
mod records;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use packd::config::VerifyImages;
use packd::contracts::Reason;
use packd::sinks::Reject;
use packd::{Config, Job, VerifyOptions};
use records::Line;
use serde::Deserialize;
use serde_json::{Value, json};

const SEQ_LEN: u32 = 4096;
/// In the style of Qwen's: the turns in order, a default system prompt, images as parts.
const TEMPLATE: &str = "{% for message in messages %}{% if loop.first and message.role != 'system' %}<|im_start|>system\n\
    You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message.role }}\n\
    {% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
    {% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
    {% endfor %}{% endif %}<|im_end|>\n{% endfor %}";

/// The verdicts on a kind, as the table states them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Verdicts {
    #[serde(rename = "llava-onevision-2")]
    llava_onevision_2: String,
    #[serde(rename = "hf-chat-template")]
    hf_chat_template: String,
    why: String,
}

fn table() -> BTreeMap<String, Verdicts> {
    serde_json::from_str(include_str!("../../broken_kinds.json")).unwrap()
}

#[test]
fn the_table_names_reasons_and_says_why() {
    let table = table();
    assert_eq!(table.len(), 55);
    for (kind, verdicts) in table {
        for verdict in [verdicts.llava_onevision_2, verdicts.hf_chat_template] {
            assert!(
                verdict == "accepted" || Reason::ALL.iter().any(|r| r.code() == verdict),
                "{kind}: {verdict}"
            );
        }
        assert!(verdicts.why.len() > 20, "{kind}");
    }
}

#[test]
fn llava_onevision_2_judges_as_the_table_says() {
    judge(|verdicts| &verdicts.llava_onevision_2, |config, _| config);
}

#[test]
fn decoding_every_image_changes_no_verdict() {
    let decode = |config, _: &Path| Config { verify_images: VerifyImages::Decode, ..config };
    judge(|verdicts| &verdicts.llava_onevision_2, decode);
}

#[test]
fn hf_chat_template_judges_as_the_table_says() {
    let with_model = |config, folder: &Path| {
        let model = folder.join("model");
        write_model(&model);
        Config { model: Some(model), profile: Some("qwen2.5-vl".into()), ..config }
    };
    judge(|verdicts| &verdicts.hf_chat_template, with_model);
}

/// A model folder with the embedded tokenizer and the pixel limits that the published processors suggest.
fn write_model(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let tokenizer = include_bytes!("../../../contracts/assets/qwen3-tokenizer.json.zst");
    std::fs::write(folder.join("tokenizer.json"), zstd::bulk::decompress(tokenizer, 16 << 20).unwrap())
        .unwrap();
    std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    let numbers = json!({"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1_003_520});
    std::fs::write(folder.join("preprocessor_config.json"), numbers.to_string()).unwrap();
}

/// Packs records of every kind and compares what became of each with the table.
fn judge(verdict: impl Fn(&Verdicts) -> &String, configure: impl Fn(Config, &Path) -> Config) {
    let temporary = tempfile::tempdir().unwrap();
    // The records name a file beside the folder of the data.
    let folder = temporary.path().join("data");
    let table = table();
    let lines = records::lines_of(table.keys(), &folder);
    let input = folder.join("data.jsonl");
    std::fs::write(
        &input,
        lines.iter().flat_map(|line| [&line.bytes[..], b"\n"]).collect::<Vec<_>>().concat(),
    )
    .unwrap();
    let output = temporary.path().join("out");
    let config = Config {
        input: vec![input.to_str().unwrap().to_owned()],
        output: Some(output.clone()),
        seq_len: Some(SEQ_LEN),
        max_reject_rate: 1.0,
        ..Config::default()
    };
    let job = Job::new(configure(config, temporary.path())).unwrap();
    let report = tokio::runtime::Runtime::new().unwrap().block_on(job.run()).unwrap();

    let counts = &report.records;
    assert_eq!(counts.read, lines.len() as u64);
    assert_eq!(counts.accepted + counts.rejected_total(), counts.read);

    let mut rejects: HashMap<u64, Reject> = HashMap::new();
    for line in std::fs::read_to_string(output.join("rejects.jsonl")).unwrap().lines() {
        let reject: Reject = serde_json::from_str(line).unwrap();
        assert!(rejects.insert(reject.byte_offset, reject).is_none(), "rejected twice: {line}");
    }
    let mut packed = packed_samples(&output);
    assert_eq!((packed.len() as u64, rejects.len() as u64), (counts.accepted, counts.rejected_total()));

    let (mut offset, mut wrong) = (0, Vec::new());
    for (number, line) in (1..).zip(&lines) {
        let expected = line.kind.as_ref().map_or("accepted", |kind| verdict(&table[kind]));
        let name = line.kind.as_deref().unwrap_or("a good record");
        match (rejects.remove(&offset), packed.remove(&offset)) {
            (Some(reject), None) => {
                assert_eq!((reject.line, &reject.id), (number, &line.id), "{name}");
                if reject.reason.code() != expected {
                    wrong.push(format!("{name}: {}: {}, not {expected}", reject.reason, reject.detail));
                }
            }
            (None, Some(sample)) => {
                assert_stored(&sample, line, name);
                if expected != "accepted" {
                    wrong.push(format!("{name}: accepted, not {expected}"));
                }
            }
            (reject, sample) => panic!("{name} on line {number}: {reject:?} and {}", sample.is_some()),
        }
        offset += line.bytes.len() as u64 + 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let verified = packd::verify(&VerifyOptions::new(&output)).unwrap();
    assert!(verified.faults.is_empty(), "{:?}", verified.faults);
}

/// A sub-sample as it stands in a shard.
struct Stored {
    id: Value,
    images: Vec<Vec<u8>>,
}

/// Every sub-sample of the shards, by the byte offset of its record.
fn packed_samples(output: &Path) -> HashMap<u64, Stored> {
    let mut samples = HashMap::new();
    for entry in std::fs::read_dir(output.join("node_000/webdataset")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "tar") {
            continue;
        }
        let members = members(&path);
        for (name, bytes) in &members {
            let Some(key) = name.strip_suffix(".json") else { continue };
            let json: Value = serde_json::from_slice(bytes).unwrap();
            for (number, source) in json["sources"].as_array().unwrap().iter().enumerate() {
                let parts = json["images"][number].as_array().unwrap();
                let image = |part: &Value| members[&format!("{key}.{}", part.as_str().unwrap())].clone();
                let stored =
                    Stored { id: json["ids"][number].clone(), images: parts.iter().map(image).collect() };
                let earlier = samples.insert(source[1].as_u64().unwrap(), stored);
                assert!(earlier.is_none(), "packed twice: {source}");
            }
        }
    }
    samples
}

fn members(shard: &Path) -> HashMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(std::fs::File::open(shard).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        (entry.path().unwrap().to_str().unwrap().to_owned(), bytes)
    });
    entries.collect()
}

/// A sample in a shard is the one of its line, with the bytes of its own images.
fn assert_stored(stored: &Stored, line: &Line, name: &str) {
    assert_eq!(stored.id.as_str(), line.id.as_deref(), "{name}");
    assert_eq!(stored.images.len(), line.images.len(), "{name}");
    for (bytes, path) in stored.images.iter().zip(&line.images) {
        assert!(*bytes == std::fs::read(path).unwrap(), "{name}: other bytes than {}", path.display());
    }
}
