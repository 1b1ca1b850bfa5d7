//! The tokenizer that ships with the program, so that a first run needs no download.
//!
//! It is Qwen3's, whose vocabulary is also that of Qwen2.5-VL, Qwen3-VL and LLaVA-OneVision-2, in
//! the canonical form that the encoder reads (made by the ignored test below), compressed.

use std::sync::{Arc, OnceLock};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// How the report names it.
pub const EMBEDDED_TOKENIZER: &str = "embedded Qwen3 tokenizer";

static COMPRESSED: &[u8] = include_bytes!("../assets/qwen3-tokenizer.json.zst");
/// Larger than the decompressed file.
const CAPACITY: usize = 16 << 20;
/// XXH3-128 of the `tokenizer.json` that the asset was made from, so that a run with the embedded
/// tokenizer and one with that file are told to be the same.
const ORIGINAL_HASH: &str = "4b841ef00ec6f61508619d9df88b09b1";

/// The embedded Qwen3 tokenizer, unpacked on the first call.
pub fn qwen3_tokenizer() -> Result<Arc<Tokenizer>, TokenizerError> {
    static LOADED: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    if let Some(tokenizer) = LOADED.get() {
        return Ok(Arc::clone(tokenizer));
    }
    let tokenizer = Arc::new(Tokenizer::from_canonical(EMBEDDED_TOKENIZER, decompress()?, ORIGINAL_HASH)?);
    // a second thread may have been faster; both loaded the same
    Ok(Arc::clone(LOADED.get_or_init(|| tokenizer)))
}

fn decompress() -> Result<String, TokenizerError> {
    let invalid = |detail: String| TokenizerError::Invalid { name: EMBEDDED_TOKENIZER.to_owned(), detail };
    let bytes = zstd::bulk::decompress(COMPRESSED, CAPACITY).map_err(|e| invalid(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| invalid(e.to_string()))
}
