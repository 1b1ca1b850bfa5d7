//! The packs that the quickstart makes do not leak, and the check would see it if they did.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use packd::{Config, Job};
use packd_inference::packed_shards::{each_pack, find_shards};
use packd_inference::{Encoder, EncoderOptions, LlavaOnevision2, leak};

/// A model of random weights, whose vocabulary the tokens are folded into.
fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/tests/golden/tiny_dense")
}

#[test]
fn packs_of_the_quickstart_do_not_leak() {
    let temporary = tempfile::tempdir().unwrap();
    let output = temporary.path().join("out");
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/data.jsonl");
    let config = Config {
        input: vec![input.to_string_lossy().into_owned()],
        output: Some(output.clone()),
        seq_len: Some(4096),
        ..Config::default()
    };
    let job = Job::new(config).unwrap();
    let report = tokio::runtime::Runtime::new().unwrap().block_on(job.run()).unwrap();
    let model = LlavaOnevision2::read(
        &tiny_model(),
        packd_inference::candle_core::DType::F32,
        &packd_inference::candle_core::Device::Cpu,
    );
    let model = model.unwrap();
    let options = EncoderOptions { fold_ids: true, ..EncoderOptions::default() };
    let encoder = Encoder::new(&tiny_model(), model.config(), &options).unwrap();
    let (mut packs, mut sub_samples) = (0, 0);
    for shard in find_shards(&output).unwrap() {
        each_pack(&shard, |raw| {
            let subs = raw.sub_samples(&encoder)?;
            let found = leak::check_pack(&model, &subs)?;
            packs += 1;
            sub_samples += subs.len() as u64;
            for (number, sub) in found.iter().enumerate() {
                assert!(sub.packed_vs_alone <= 1e-5, "{} {number}: {sub:?}", raw.name);
                assert!(number == 0 || sub.leaky_vs_alone > 1.0, "{} {number}: {sub:?}", raw.name);
            }
            assert_eq!(leak::perturb(&model, &subs, 0)?, 0.0, "{}: bit-exact", raw.name);
            Ok(true)
        })
        .unwrap();
    }
    assert_eq!((packs, sub_samples), (3, report.records.accepted));
}
