//! Attention within domains, without a matrix of all pairs.

use candle_core::{DType, Device, Tensor};

use crate::domains::AttentionDomains;
use crate::error::{ModelError, Result};

/// The boundaries of one attention call, on the device where they are needed.
pub(crate) struct DomainPair {
    queries: AttentionDomains,
    keys: AttentionDomains,
    /// The running sums where the kernel takes them.
    #[cfg(feature = "cuda")]
    on_device: [Tensor; 2],
}

impl DomainPair {
    /// Sequences that attend to themselves.
    pub(crate) fn same(domains: &AttentionDomains, device: &Device) -> Result<Self> {
        Self::new(domains.clone(), domains.clone(), device)
    }

    /// Queries at the end of longer sequences of keys (generation with a cache).
    pub(crate) fn new(
        queries: AttentionDomains,
        keys: AttentionDomains,
        #[cfg_attr(not(feature = "cuda"), allow(unused_variables))] device: &Device,
    ) -> Result<Self> {
        queries.check()?;
        keys.check()?;
        if queries.lengths().len() != keys.lengths().len() {
            let (queries, keys) = (queries.lengths().len(), keys.lengths().len());
            return Err(ModelError::Domains(format!("{queries} sequences of queries, {keys} of keys")));
        }
        if queries.lengths().zip(keys.lengths()).any(|(queries, keys)| queries > keys) {
            return Err(ModelError::Domains("a sequence has more queries than keys".into()));
        }
        Ok(Self {
            #[cfg(feature = "cuda")]
            on_device: [Tensor::new(queries.cu_seqlens(), device)?, Tensor::new(keys.cu_seqlens(), device)?],
            queries,
            keys,
        })
    }
}

/// `softmax(q kᵀ scale) v` within each domain; with `causal` a query sees keys up to its own place, counted from the
/// end of its sequence.
///
/// Shapes: q [n, heads, width], k and v [m, key heads, width]; query head `j` reads key head `j / (heads / key heads)`.
/// Result [n, heads, width]. The softmax is in f32.
pub(crate) fn attend([q, k, v]: [&Tensor; 3], domains: &DomainPair, causal: bool) -> Result<Tensor> {
    let (tokens, _, width) = q.dims3()?;
    let keys = k.dim(0)?;
    if (tokens, keys) != (domains.queries.tokens() as usize, domains.keys.tokens() as usize) {
        return Err(ModelError::Domains(format!(
            "the boundaries are of {} queries and {} keys, there are {tokens} and {keys}",
            domains.queries.tokens(),
            domains.keys.tokens()
        )));
    }
    let scale = 1.0 / (width as f32).sqrt();
    if q.device().is_cuda() {
        return on_gpu([q, k, v], domains, scale, causal);
    }
    on_cpu([q, k, v], domains, scale, causal)
}

/// Scores that are held at once, of all heads: 64 MB in f32.
const SCORES_AT_ONCE: usize = 1 << 24;
/// Queries that are taken at once; with more, causal attention computes too many scores that it throws away.
const QUERIES_AT_ONCE: usize = 256;

/// Some queries of a sequence at a time against all keys that they see. (candle's own variable-length kernel takes one
/// query and one key at a time; it needed 4 to 9 times as long for 2,048 tokens with heads of 64 and 128.)
fn on_cpu([q, k, v]: [&Tensor; 3], domains: &DomainPair, scale: f32, causal: bool) -> Result<Tensor> {
    let dtype = q.dtype();
    let wide = |x: &Tensor| x.to_dtype(DType::F32);
    let (q, k, v) = ((wide(q)? * f64::from(scale))?, wide(k)?, wide(v)?);
    let (_, heads, width) = q.dims3()?;
    let key_heads = k.dim(1)?;
    let mut parts = Vec::new();
    for (queries, keys) in domains.queries.ranges().zip(domains.keys.ranges()) {
        let of_keys = |x: &Tensor| x.narrow(0, keys.start, keys.len())?.transpose(0, 1)?.contiguous();
        let (k, v) = (of_keys(&k)?.transpose(1, 2)?, of_keys(&v)?);
        let before = keys.len() - queries.len();
        let at_once = (SCORES_AT_ONCE / (heads * keys.len())).clamp(1, QUERIES_AT_ONCE);
        for first in (0..queries.len()).step_by(at_once) {
            let rows = at_once.min(queries.len() - first);
            let seen = if causal { before + first + rows } else { keys.len() };
            // Query heads that share a key head lie behind each other.
            let q = q.narrow(0, queries.start + first, rows)?.transpose(0, 1)?.contiguous()?;
            let q = q.reshape((key_heads, heads / key_heads * rows, width))?;
            let mut scores = q.matmul(&k.narrow(2, 0, seen)?)?;
            if causal && rows > 1 {
                let mask = later_keys(rows, seen, q.device())?;
                scores = scores.reshape((heads, rows, seen))?.broadcast_add(&mask)?;
                scores = scores.reshape((key_heads, heads / key_heads * rows, seen))?;
            }
            let weights = candle_nn::ops::softmax_last_dim(&scores)?;
            let out = weights.matmul(&v.narrow(1, 0, seen)?)?;
            parts.push(out.reshape((heads, rows, width))?.transpose(0, 1)?);
        }
    }
    Ok(Tensor::cat(&parts, 0)?.to_dtype(dtype)?)
}

/// Minus infinity where a key comes after the query; the last query sees all `seen` keys.
fn later_keys(rows: usize, seen: usize, device: &Device) -> Result<Tensor> {
    let mut mask = vec![0_f32; rows * seen];
    for (row, keys) in mask.chunks_exact_mut(seen).enumerate() {
        keys[seen - rows + row + 1..].fill(f32::NEG_INFINITY);
    }
    Ok(Tensor::from_vec(mask, (rows, seen), device)?)
}

#[cfg(feature = "cuda")]
fn on_gpu([q, k, v]: [&Tensor; 3], domains: &DomainPair, scale: f32, causal: bool) -> Result<Tensor> {
    // The build compiles the kernel for bf16 and heads of up to 128.
    let (dtype, inside, width) = (q.dtype(), DType::BF16, q.dim(2)?);
    if width > 128 || !width.is_multiple_of(8) {
        return Err(ModelError::Config {
            name: "config.json".into(),
            detail: format!("heads of {width}; packd-gpu is built for multiples of 8 up to 128"),
        });
    }
    let [q, k, v] = [q.to_dtype(inside)?, k.to_dtype(inside)?, v.to_dtype(inside)?];
    let [q_sums, k_sums] = &domains.on_device;
    let [longest_q, longest_k] = [&domains.queries, &domains.keys].map(|it| it.max_seqlen() as usize);
    let out = candle_flash_attn::flash_attn_varlen(
        &q, &k, &v, q_sums, k_sums, longest_q, longest_k, scale, causal,
    )?;
    Ok(out.to_dtype(dtype)?)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: [&Tensor; 3], _: &DomainPair, _: f32, _: bool) -> Result<Tensor> {
    Err(candle_core::Error::NotCompiledWithCudaSupport.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of one head, in f64.
    fn naive(q: &[f32], k: &[f32], v: &[f32], width: usize, causal: bool) -> Vec<f32> {
        let (queries, keys) = (q.len() / width, k.len() / width);
        let mut out = Vec::new();
        for i in 0..queries {
            let last = if causal { keys - queries + i + 1 } else { keys };
            let scores: Vec<f64> = (0..last)
                .map(|j| {
                    let dot: f64 =
                        (0..width).map(|d| f64::from(q[i * width + d]) * f64::from(k[j * width + d])).sum();
                    (dot / (width as f64).sqrt()).exp()
                })
                .collect();
            let sum: f64 = scores.iter().sum();
            out.extend((0..width).map(|d| {
                let weighted: f64 =
                    scores.iter().enumerate().map(|(j, score)| score * f64::from(v[j * width + d])).sum();
                (weighted / sum) as f32
            }));
        }
        out
    }

    #[test]
    fn equals_every_pair_within_each_domain() {
        let (width, device) = (16, Device::Cpu);
        let lengths = [5_u32, 1, 9];
        let domains = AttentionDomains::from_lengths(lengths).unwrap();
        let random = || Tensor::randn(0_f32, 1.0, (15, 1, width), &device).unwrap();
        let [q, k, v] = [random(), random(), random()];
        let pair = DomainPair::same(&domains, &device).unwrap();
        let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let [qs, ks, vs] = [flat(&q), flat(&k), flat(&v)];
        for causal in [false, true] {
            let out = flat(&attend([&q, &k, &v], &pair, causal).unwrap());
            for range in domains.ranges() {
                let at = range.start * width..range.end * width;
                let expected = naive(&qs[at.clone()], &ks[at.clone()], &vs[at.clone()], width, causal);
                for (found, expected) in out[at].iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-5, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn boundaries_of_other_tensors_are_refused() {
        let device = Device::Cpu;
        let three = Tensor::zeros((3, 1, 8), DType::F32, &device).unwrap();
        let pair = DomainPair::same(&AttentionDomains::single(4).unwrap(), &device).unwrap();
        let error = attend([&three, &three, &three], &pair, true).unwrap_err();
        assert!(error.to_string().contains("of 4 queries and 4 keys, there are 3 and 3"), "{error}");
    }
}
