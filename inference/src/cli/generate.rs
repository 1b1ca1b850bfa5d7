//! `packd model generate`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{ModelArgs, exit, read_image};
use crate::error::Result;
use crate::generate::{Sampling, generate};

/// Answers one question, greedily unless a temperature is given.
#[derive(Args)]
pub(super) struct GenerateArgs {
    /// The question; images stand where it says <image>, else before it
    prompt: String,
    #[command(flatten)]
    model: ModelArgs,
    /// An image; may be given several times
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Stop after so many tokens
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_new_tokens: usize,
    /// Divide the logits by this and draw; 0 takes the likeliest token
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    temperature: f32,
    /// Draw among the likeliest tokens that reach this probability together
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Draw among so many of the likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print token ids instead of text
    #[arg(long)]
    ids: bool,
}

pub(super) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let (model, encoder) = args.model.load()?;
    let images = args.image.iter().map(|path| read_image(path)).collect::<Result<Vec<_>>>()?;
    let prompt = encoder.question(&args.prompt, &images)?;
    let sampling =
        Sampling { temperature: args.temperature, top_p: args.top_p, top_k: args.top_k, seed: args.seed };
    let mut shown = String::new();
    let mut tokens = Vec::new();
    let generated = generate(&model, &prompt, args.max_new_tokens, &sampling, |token| {
        tokens.push(token);
        if args.ids {
            show(&format!("{token} "));
        } else if let Ok(text) = encoder.decode(&tokens)
            // A character may be of several tokens; what is not whole yet ends with this.
            && !text.ends_with(char::REPLACEMENT_CHARACTER)
        {
            show(text.strip_prefix(shown.as_str()).unwrap_or_default());
            shown = text;
        }
    })?;
    show("\n");
    eprintln!("{} tokens after a prompt of {}", generated.len(), prompt.input_ids.len());
    Ok(ExitCode::SUCCESS)
}

/// Prints at once; a reader that has gone away ends the program.
fn show(text: &str) {
    let mut out = std::io::stdout();
    if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(exit::IO.into());
    }
}
