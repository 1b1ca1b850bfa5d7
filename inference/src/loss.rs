//! The loss of each token.

use candle_core::{D, Tensor};

use crate::batch::{IGNORE, PackedBatch};
use crate::decoder::in_f32;
use crate::error::{ModelError, Result};
use crate::model::LlavaOnevision2;

/// Tokens whose logits are held at once: a vocabulary in f32 is 600 KB a token.
const AT_ONCE: usize = 1024;

/// Cross entropy of every trained token, in nats: entry `i` is the loss of predicting token `i` from those before it in
/// its own sub-sample; `None` for what is not trained on and for the first token of a sub-sample, which nothing
/// predicts.
///
/// # Errors
/// [`ModelError::Batch`] when the hidden states are of another batch or a label is no token.
pub fn token_losses(
    model: &LlavaOnevision2,
    hidden: &Tensor,
    batch: &PackedBatch,
) -> Result<Vec<Option<f32>>> {
    if hidden.dim(0)? != batch.labels().len() {
        let (states, labels) = (hidden.dim(0)?, batch.labels().len());
        return Err(ModelError::Batch(format!("{states} hidden states for {labels} labels")));
    }
    let vocabulary = model.config().text.vocab_size;
    let mut losses = vec![None; batch.labels().len()];
    // Which hidden state predicts which token.
    let mut predicted: Vec<(u32, u32)> = Vec::new();
    for range in batch.domains().ranges() {
        for token in range.start + 1..range.end {
            let label = batch.labels()[token];
            if label == IGNORE {
                continue;
            }
            let known = u32::try_from(label).ok().filter(|label| (*label as usize) < vocabulary);
            let known =
                known.ok_or_else(|| ModelError::Batch(format!("label {label} is beyond the vocabulary")))?;
            predicted.push((token as u32 - 1, known));
        }
    }
    for part in predicted.chunks(AT_ONCE) {
        let (from, labels): (Vec<u32>, Vec<u32>) = part.iter().copied().unzip();
        let rows = hidden.index_select(&Tensor::new(from, hidden.device())?, 0)?;
        let logits = in_f32(&model.logits(&rows)?)?;
        let labels = Tensor::new(labels, hidden.device())?.unsqueeze(1)?;
        let likely = candle_nn::ops::log_softmax(&logits, D::Minus1)?.gather(&labels, 1)?.squeeze(1)?;
        for ((from, _), value) in part.iter().zip(likely.neg()?.to_vec1::<f32>()?) {
            losses[*from as usize + 1] = Some(value);
        }
    }
    Ok(losses)
}
