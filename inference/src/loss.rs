//! The loss of each token.

use candle_core::{D, Tensor};

use crate::batch::{IGNORE, PackedBatch};
use crate::decoder::in_f32;
use crate::error::Result;
use crate::model::LlavaOnevision2;

/// Tokens whose logits are held at once: a vocabulary in f32 is 600 KB a token.
const AT_ONCE: usize = 1024;

/// Cross entropy of every trained token, in nats: entry `i` is the loss of predicting token `i` from those before it in
/// its own sub-sample; `None` for what is not trained on and for the first token of a sub-sample, which nothing
/// predicts.
///
/// # Errors
/// [`crate::ModelError::Tensor`].
pub fn token_losses(
    model: &LlavaOnevision2,
    hidden: &Tensor,
    batch: &PackedBatch,
) -> Result<Vec<Option<f32>>> {
    let mut losses = vec![None; batch.labels().len()];
    // Which hidden state predicts which token.
    let mut predicted: Vec<(u32, u32)> = Vec::new();
    for range in batch.domains().ranges() {
        for token in range.start + 1..range.end {
            if batch.labels()[token] != IGNORE {
                predicted.push((token as u32 - 1, batch.labels()[token] as u32));
            }
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
