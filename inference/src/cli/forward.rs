//! `packd model forward`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_core::{Device, Tensor};
use clap::Args;
use serde::Serialize;

use super::{ModelArgs, exit, save, say};
use crate::batch::{PackedBatch, SubSample};
use crate::encoder::Encoder;
use crate::error::{ModelError, Result};
use crate::loss::token_losses;
use crate::model::LlavaOnevision2;
use crate::packed_shards::{each_pack, find_shards};
use crate::probe::NoProbe;
use crate::records::each_record;

/// Prints one JSON object a sub-sample: its tokens, how many are trained on, and their mean cross entropy in nats.
#[derive(Args)]
pub(super) struct ForwardArgs {
    /// Packed shards (a tar or a folder), or records (a JSONL file)
    input: String,
    #[command(flatten)]
    model: ModelArgs,
    /// Relative image paths of records start here [default: the folder of the input]
    #[arg(long, value_name = "DIR")]
    image_root: Option<PathBuf>,
    /// Stop after so many packs or records; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    limit: usize,
    /// Print the loss of every token; null where nothing is trained on
    #[arg(long)]
    per_token: bool,
    /// Write the logits of every pack or record to this safetensors file
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    sub_sample: usize,
    tokens: usize,
    trained: usize,
    loss: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_losses: Option<&'a [Option<f32>]>,
}

struct Forward<'a> {
    args: &'a ForwardArgs,
    model: LlavaOnevision2,
    logits: HashMap<String, Tensor>,
    done: usize,
    unusable: usize,
}

pub(super) fn run(args: &ForwardArgs) -> Result<ExitCode> {
    let (model, encoder) = args.model.load()?;
    let mut forward = Forward { args, model, logits: HashMap::new(), done: 0, unusable: 0 };
    let path = Path::new(&args.input);
    if path.is_dir() || path.extension().is_some_and(|extension| extension == "tar") {
        forward.shards(path, &encoder)?;
    } else {
        forward.records(&encoder)?;
    }
    if let Some(path) = &args.logits {
        save(&forward.logits, path)?;
    }
    if forward.done + forward.unusable == 0 {
        return Err(ModelError::Input(format!("{} holds no packs and no records", args.input)));
    }
    if forward.unusable > 0 {
        eprintln!("{} records cannot be used", forward.unusable);
        return Ok(ExitCode::from(exit::DATA));
    }
    Ok(ExitCode::SUCCESS)
}

impl Forward<'_> {
    fn goes_on(&self) -> bool {
        self.args.limit == 0 || self.done < self.args.limit
    }

    fn shards(&mut self, path: &Path, encoder: &Encoder) -> Result<()> {
        for shard in find_shards(path)? {
            let goes_on = each_pack(&shard, |raw| {
                self.pack(&raw.name, &raw.sub_samples(encoder)?)?;
                Ok(self.goes_on())
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn records(&mut self, encoder: &Encoder) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| ModelError::Input(error.to_string()))?;
        let inputs = [self.args.input.clone()];
        runtime.block_on(each_record(&inputs, self.args.image_root.clone(), encoder, |name, sub| {
            match sub {
                Ok(sub) => self.pack(&name, std::slice::from_ref(&sub))?,
                Err(error) => {
                    self.unusable += 1;
                    eprintln!("{name}: {error}");
                }
            }
            Ok(self.goes_on())
        }))
    }

    fn pack(&mut self, name: &str, subs: &[SubSample]) -> Result<()> {
        let batch = PackedBatch::pack(subs)?;
        let hidden = self.model.hidden_states(&batch, &mut NoProbe)?;
        let losses = token_losses(&self.model, &hidden, &batch)?;
        for (number, range) in batch.domains().ranges().enumerate() {
            let all = &losses[range.clone()];
            let trained: Vec<f32> = all.iter().flatten().copied().collect();
            let loss = trained.iter().sum::<f32>() / trained.len() as f32;
            let line = Line {
                name,
                sub_sample: number,
                tokens: range.len(),
                trained: trained.len(),
                loss: (!trained.is_empty()).then_some(loss),
                token_losses: self.args.per_token.then_some(all),
            };
            say!("{}", serde_json::json!(line));
        }
        if self.args.logits.is_some() {
            let logits = self.model.logits(&hidden)?.to_device(&Device::Cpu)?;
            self.logits.insert(name.to_owned(), logits);
        }
        self.done += 1;
        Ok(())
    }
}
