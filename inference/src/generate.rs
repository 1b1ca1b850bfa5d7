//! Generation with a cache of keys and values.

use candle_core::IndexOp;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::batch::{PackedBatch, SubSample};
use crate::decoder::in_f32;
use crate::error::Result;
use crate::model::LlavaOnevision2;

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 takes the likeliest token (greedy).
    pub temperature: f32,
    /// Only the likeliest tokens that reach this probability together.
    pub top_p: f32,
    /// Only so many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// The same seed chooses the same tokens.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };
}

/// Continues `prompt` by up to `max_new_tokens` tokens; one of the model's end tokens ends it and is the last one.
/// `on_token` sees each token as it comes.
///
/// # Errors
/// Those of [`LlavaOnevision2::forward`].
pub fn generate(
    model: &LlavaOnevision2,
    prompt: &SubSample,
    max_new_tokens: usize,
    sampling: &Sampling,
    mut on_token: impl FnMut(u32),
) -> Result<Vec<u32>> {
    let mut random = StdRng::seed_from_u64(sampling.seed);
    // A cache grows by itself; room for more than is usual would only be taken in advance.
    let mut caches = model.new_caches(prompt.input_ids.len() + max_new_tokens.min(512));
    let mut batch = PackedBatch::pack(std::slice::from_ref(prompt))?;
    let mut seen = 0;
    let mut generated = Vec::new();
    while generated.len() < max_new_tokens {
        let hidden = model.continue_one(&batch, seen, &mut caches)?;
        seen += batch.domains().tokens();
        let last = hidden.i(hidden.dim(0)? - 1..)?;
        let logits = in_f32(&model.logits(&last)?)?.squeeze(0)?.to_vec1()?;
        let token = choose(&logits, sampling, &mut random);
        generated.push(token);
        on_token(token);
        if model.config().eos_token_ids.contains(&token) {
            break;
        }
        batch = PackedBatch::pack(&[SubSample::text(vec![token])])?;
    }
    Ok(generated)
}

/// A token by its logits; of equal ones the lower id.
fn choose(logits: &[f32], sampling: &Sampling, random: &mut StdRng) -> u32 {
    let mut ranked: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let likelier = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if sampling.temperature <= 0.0 {
        return ranked.into_iter().min_by(likelier).map_or(0, |(token, _)| token);
    }
    ranked.sort_unstable_by(likelier);
    if sampling.top_k > 0 {
        ranked.truncate(sampling.top_k);
    }
    let highest = ranked.first().map_or(0.0, |it| it.1);
    let weigh = |logit: f32| f64::from((logit - highest) / sampling.temperature).exp();
    let all: f64 = ranked.iter().map(|it| weigh(it.1)).sum();
    let (mut kept, mut sum) = (Vec::new(), 0.0);
    for (token, logit) in ranked {
        sum += weigh(logit);
        kept.push((token, sum));
        if sum >= f64::from(sampling.top_p) * all {
            break;
        }
    }
    let drawn = random.random::<f64>() * sum;
    kept.iter().find(|(_, up_to)| *up_to > drawn).or(kept.last()).map_or(0, |(token, _)| *token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(sampling: &Sampling) -> Vec<u32> {
        let mut random = StdRng::seed_from_u64(sampling.seed);
        (0..1000).map(|_| choose(&[1.0, 3.0, 2.0, 3.0], sampling, &mut random)).collect()
    }

    #[test]
    fn greedy_takes_the_likeliest_and_of_equal_ones_the_first() {
        assert_eq!(drawn(&Sampling::GREEDY), vec![1; 1000]);
    }

    #[test]
    fn limits_keep_the_unlikely_away() {
        let all = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let kept = |sampling: Sampling| {
            let mut tokens = drawn(&sampling);
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        assert_eq!(kept(all.clone()), [0, 1, 2, 3]);
        assert_eq!(kept(Sampling { top_k: 3, ..all.clone() }), [1, 2, 3]);
        assert_eq!(kept(Sampling { top_p: 0.7, ..all.clone() }), [1, 3]);
        // e^3 each for two of them, of a sum of e + e^2 + 2 e^3.
        let share = drawn(&all).iter().filter(|&&token| token == 1).count();
        assert!((360..470).contains(&share), "{share} of 1000, 399 expected");
    }

    #[test]
    fn a_seed_repeats_itself() {
        let sampling = Sampling { temperature: 0.7, top_p: 0.9, top_k: 0, seed: 7 };
        assert_eq!(drawn(&sampling), drawn(&sampling));
    }
}
