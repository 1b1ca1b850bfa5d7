//! Checkpoints: merging and converting 2 GB of random weights, beside copying the same bytes.
//!
//! `checkpoints PACKD_MODEL SCRATCH [--layers N] [--runs N]`
//!
//! A vision tower and a decoder are made and merged, the merged checkpoint converted to Megatron (TP 2, PP 2), from there
//! to other degrees (TP 4), and back, where its weights must be those of the start, byte for byte. The floor is `cp -r`
//! of the merged checkpoint, for work with `--fsync` also `sync` of what it wrote; all take turns. A layer of the decoder
//! has 100 MB.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use packd_benches::{Table, anonymous_peak_of, ratio, scaled};
use safetensors::Dtype;
use safetensors::tensor::View;
use serde_json::json;

type Failed = Box<dyn std::error::Error>;

const WIDTH: usize = 2048;
const WIDE: usize = 6144;
const VOCABULARY: usize = 151_936;
const VISION_WIDTH: usize = 1024;
const VISION_LAYERS: usize = 8;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [packd, scratch, rest @ ..] = arguments.as_slice() else {
        return Err("usage: checkpoints PACKD_MODEL SCRATCH [--layers N] [--runs N]".into());
    };
    let (mut layers, mut runs) = (6, 3);
    for pair in rest.chunks(2) {
        match pair {
            [flag, value] if flag == "--layers" => layers = value.parse()?,
            [flag, value] if flag == "--runs" => runs = value.parse()?,
            _ => return Err(format!("unknown argument {}", pair[0]).into()),
        }
    }
    let work = Work { packd, folder: Path::new(scratch) };
    work.make_sources(layers)?;
    let mut best: Vec<Measured> = Vec::new();
    let mut bytes = 0;
    for _ in 0..runs.max(1) {
        let run = work.run()?;
        bytes = size(&work.path("merged"))?;
        work.clear()?;
        match best.is_empty() {
            true => best = run,
            false => best.iter_mut().zip(run).for_each(|(best, run)| best.take_better(run)),
        }
    }
    let floor = best[0].times;
    let title = format!("Checkpoints: {} MB, best of {} runs", scaled(bytes / 1_000_000), runs.max(1));
    let heads = ["work", "seconds", "MB/s", "ratio", "with --fsync", "ratio", "peak RssAnon"];
    let mut table = Table::new(&title, heads);
    for Measured { name, times, memory } in best {
        let rate = bytes as f64 / 1e6 / times[0].as_secs_f64();
        let memory = memory.map_or("-".to_owned(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6));
        let [plain, synced] = times.map(|time| format!("{:.2}", time.as_secs_f64()));
        let [of_plain, of_synced] = [0, 1].map(|at| ratio(times[at], floor[at]));
        table.row([name.into(), plain, format!("{rate:.0}"), of_plain, synced, of_synced, memory]);
    }
    println!("{table}");
    Ok(())
}

/// What one piece of work took, without and with syncing.
struct Measured {
    name: &'static str,
    times: [Duration; 2],
    memory: Option<u64>,
}

impl Measured {
    /// The shorter times, and the larger memory.
    fn take_better(&mut self, other: Self) {
        self.times = [0, 1].map(|at| self.times[at].min(other.times[at]));
        self.memory = self.memory.max(other.memory);
    }
}

struct Work<'a> {
    packd: &'a str,
    folder: &'a Path,
}

impl Work<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Everything once, each from a state in which nothing is left to be written.
    fn run(&self) -> Result<Vec<Measured>, Failed> {
        let merge = self.packd(
            "merge",
            "merged",
            "merge --vit {vit} --llm {llm} --processor {processor} --out {merged}",
        )?;
        let floor = self.copy()?;
        let shards = self.packd(
            "merge, files of 300 MB",
            "shards",
            "merge --vit {vit} --llm {llm} --processor {processor} --out {shards} --max-shard-size 300MB",
        )?;
        self.check_shards()?;
        let to_mcore = self.packd(
            "Hugging Face to Megatron, TP 2, PP 2",
            "mcore",
            "convert {merged} {mcore} --to mcore --tp 2 --pp 2",
        )?;
        let reshard = self.packd(
            "Megatron to Megatron, TP 4",
            "other",
            "convert {mcore} {other} --to mcore --tp 4 --hf {merged}",
        )?;
        let to_hf =
            self.packd("Megatron to Hugging Face", "back", "convert {other} {back} --to hf --hf {merged}")?;
        self.check_weights()?;
        Ok(vec![floor, merge, shards, to_mcore, reshard, to_hf])
    }

    /// The floor.
    fn copy(&self) -> Result<Measured, Failed> {
        settle()?;
        let started = Instant::now();
        let copied = Command::new("cp").arg("-r").arg(self.path("merged")).arg(self.path("copy")).status()?;
        let plain = started.elapsed();
        let files: Vec<PathBuf> = std::fs::read_dir(self.path("copy"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        let synced = Command::new("sync").arg("-d").args(files).status()?;
        let whole = started.elapsed();
        if !copied.success() || !synced.success() {
            return Err("cp or sync failed".into());
        }
        std::fs::remove_dir_all(self.path("copy"))?;
        Ok(Measured { name: "cp -r (floor)", times: [plain, whole], memory: None })
    }

    /// Runs packd with paths for the names in braces, first with `--fsync` and then without: its times, and the most
    /// anonymous memory that it held.
    fn packd(&self, name: &'static str, target: &str, line: &str) -> Result<Measured, Failed> {
        let argument = |word: &str| match word.strip_prefix('{').and_then(|word| word.strip_suffix('}')) {
            Some(name) => self.path(name).into_os_string(),
            None => word.into(),
        };
        let run = |more: &[&str]| -> Result<(Duration, Option<u64>), Failed> {
            settle()?;
            let mut program = Command::new(self.packd);
            program.args(line.split(' ').map(argument)).args(more).stdout(Stdio::null());
            let started = Instant::now();
            let (status, memory) = anonymous_peak_of(&mut program)?;
            let time = started.elapsed();
            if status.success() {
                Ok((time, memory))
            } else {
                Err(format!("{line} ended with {status}").into())
            }
        };
        let (synced, _) = run(&["--fsync"])?;
        std::fs::remove_dir_all(self.path(target))?;
        let (plain, memory) = run(&[])?;
        Ok(Measured { name, times: [plain, synced], memory })
    }

    /// Several threads wrote them of the same sources.
    fn check_shards(&self) -> Result<(), Failed> {
        let [vit, llm, processor, shards] = ["vit", "llm", "processor", "shards"].map(|name| self.path(name));
        let mut program = Command::new(self.packd);
        program.arg("validate").arg("--vit").arg(vit).arg("--llm").arg(llm).arg("--processor").arg(processor);
        program.args(["--skip", "vit,llm,e2e", "--ckpt"]).arg(&shards).stdout(Stdio::null());
        let status = program.status()?;
        std::fs::remove_dir_all(shards)?;
        if status.success() { Ok(()) } else { Err("the shards are not what the sources make".into()) }
    }

    fn check_weights(&self) -> Result<(), Failed> {
        let [one, other] = ["merged", "back"].map(|name| self.path(name).join("model.safetensors"));
        let same = Command::new("cmp").arg(&one).arg(&other).status()?;
        if same.success() { Ok(()) } else { Err("the weights came back changed".into()) }
    }

    fn clear(&self) -> std::io::Result<()> {
        let folders = ["merged", "mcore", "other", "back"];
        folders.iter().try_for_each(|name| std::fs::remove_dir_all(self.path(name)))
    }

    /// Folders of a vision tower, a decoder and a processor.
    fn make_sources(&self, layers: usize) -> Result<(), Failed> {
        for name in ["vit", "llm", "processor"] {
            std::fs::create_dir_all(self.path(name))?;
        }
        let write = |folder: &str, name: &str, json: serde_json::Value| {
            std::fs::write(self.path(folder).join(name), json.to_string())
        };
        write("processor", "preprocessor_config.json", json!({"patch_size": 14, "merge_size": 2}))?;
        write("processor", "tokenizer.json", json!({"added_tokens": []}))?;
        write("vit", "config.json", json!({"num_hidden_layers": VISION_LAYERS}))?;
        let decoder = json!({
            "model_type": "qwen3", "hidden_size": WIDTH, "intermediate_size": WIDE, "num_hidden_layers": layers,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false,
        });
        write("llm", "config.json", decoder)?;
        for (folder, tensors) in [("vit", vision_tower()), ("llm", decoder_tensors(layers))] {
            let seeded =
                tensors.into_iter().zip(1..).map(|((name, shape), seed)| (name, Random { shape, seed }));
            safetensors::serialize_to_file(seeded, None, &self.path(folder).join("model.safetensors"))?;
        }
        Ok(())
    }
}

type Shapes = Vec<(String, Vec<usize>)>;

fn vision_tower() -> Shapes {
    let (width, wide) = (VISION_WIDTH, 4 * VISION_WIDTH);
    let mut all = vec![("embeddings.patch_embedding.weight".to_owned(), vec![width, 3, 14, 14])];
    let mut linear = |name: String, output: usize, input: usize| {
        all.push((format!("{name}.weight"), vec![output, input]));
        all.push((format!("{name}.bias"), vec![output]));
    };
    for layer in (0..VISION_LAYERS).map(|layer| format!("encoder.layers.{layer}")) {
        for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            linear(format!("{layer}.self_attn.{name}"), width, width);
        }
        linear(format!("{layer}.mlp.fc1"), wide, width);
        linear(format!("{layer}.mlp.fc2"), width, wide);
    }
    let of_layer = |layer| [1, 2].map(|norm| format!("encoder.layers.{layer}.layer_norm{norm}"));
    let norms = (0..VISION_LAYERS).flat_map(of_layer).chain(["layernorm_pre".to_owned()]);
    for norm in norms {
        all.extend(["weight", "bias"].map(|kind| (format!("{norm}.{kind}"), vec![width])));
    }
    all
}

fn decoder_tensors(layers: usize) -> Shapes {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
    ];
    for layer in (0..layers).map(|layer| format!("model.layers.{layer}")) {
        for (name, shape) in [
            ("input_layernorm", vec![WIDTH]),
            ("post_attention_layernorm", vec![WIDTH]),
            ("self_attn.q_norm", vec![128]),
            ("self_attn.k_norm", vec![128]),
            ("self_attn.q_proj", vec![16 * 128, WIDTH]),
            ("self_attn.k_proj", vec![8 * 128, WIDTH]),
            ("self_attn.v_proj", vec![8 * 128, WIDTH]),
            ("self_attn.o_proj", vec![WIDTH, 16 * 128]),
            ("mlp.gate_proj", vec![WIDE, WIDTH]),
            ("mlp.up_proj", vec![WIDE, WIDTH]),
            ("mlp.down_proj", vec![WIDTH, WIDE]),
        ] {
            all.push((format!("{layer}.{name}.weight"), shape));
        }
    }
    all
}

/// A tensor whose bytes are made when they are written.
struct Random {
    shape: Vec<usize>,
    seed: u64,
}

impl View for Random {
    fn dtype(&self) -> Dtype {
        Dtype::BF16
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut state = self.seed << 40;
        let mut bytes = Vec::with_capacity(self.data_len() + 8);
        while bytes.len() < self.data_len() {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bytes.extend((word ^ (word >> 31)).to_le_bytes());
        }
        bytes.truncate(self.data_len());
        bytes.into()
    }

    fn data_len(&self) -> usize {
        2 * self.shape.iter().product::<usize>()
    }
}

fn size(folder: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

/// What an earlier turn left to be written must not count against this one.
fn settle() -> std::io::Result<()> {
    Command::new("sync").status().map(drop)
}
