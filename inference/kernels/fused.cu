// Element-wise work of a layer in one pass over memory each: bf16 in and out, f32 between.

#include <cuda_bf16.h>
#include <cstdint>

namespace {

// What a thread reads at once: 16 bytes.
struct alignas(16) Eight {
  __nv_bfloat162 pairs[4];
};

__device__ float sum_of_warp(float x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The sum over a block of up to 1024 threads, for all of them.
__device__ float sum_of_block(float x) {
  __shared__ float of_warps[32];
  x = sum_of_warp(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  const int warps = blockDim.x / 32;
  x = threadIdx.x % 32 < warps ? of_warps[threadIdx.x % 32] : 0.0f;
  x = sum_of_warp(x);
  __syncthreads();
  return x;
}

__device__ float rounded(float x) { return __bfloat162float(__float2bfloat16(x)); }

}  // namespace

// out = silu(gate) * up; `eights` of each.
extern "C" __global__ void silu_mul_bf16(const size_t eights, const Eight *gate, const Eight *up, Eight *out) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < eights; i += size_t(gridDim.x) * blockDim.x) {
    const Eight g = gate[i], u = up[i];
    Eight o;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 a = __bfloat1622float2(g.pairs[k]), b = __bfloat1622float2(u.pairs[k]);
      const float x = rounded(a.x / (1.0f + __expf(-a.x))), y = rounded(a.y / (1.0f + __expf(-a.y)));
      o.pairs[k] = __floats2bfloat162_rn(x * b.x, y * b.y);
    }
    out[i] = o;
  }
}

// Of rows [width]: out[0] = x + delta, out[1] = rms_norm(x + delta) * weight. One block a row; `stride` is the distance
// of the two results in elements.
extern "C" __global__ void add_rms_norm_bf16(const int width, const size_t stride, const float eps,
                                             const __nv_bfloat16 *x, const __nv_bfloat16 *delta,
                                             const __nv_bfloat16 *weight, __nv_bfloat16 *out) {
  const size_t row = blockIdx.x * size_t(width);
  const Eight *xs = reinterpret_cast<const Eight *>(x + row), *ds = reinterpret_cast<const Eight *>(delta + row);
  const Eight *ws = reinterpret_cast<const Eight *>(weight);
  Eight *sums = reinterpret_cast<Eight *>(out + row), *normed = reinterpret_cast<Eight *>(out + stride + row);
  float squares = 0.0f;
  for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
    const Eight a = xs[i], b = ds[i];
    Eight sum;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      sum.pairs[k] = __hadd2(a.pairs[k], b.pairs[k]);
      const float2 s = __bfloat1622float2(sum.pairs[k]);
      squares += s.x * s.x + s.y * s.y;
    }
    sums[i] = sum;
  }
  const float scale = rsqrtf(sum_of_block(squares) / width + eps);
  for (int i = threadIdx.x; i < width / 8; i += blockDim.x) {
    const Eight sum = sums[i], w = ws[i];
    Eight o;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 s = __bfloat1622float2(sum.pairs[k]);
      o.pairs[k] = __hmul2(__floats2bfloat162_rn(s.x * scale, s.y * scale), w.pairs[k]);
    }
    normed[i] = o;
  }
}

// Heads [tokens, heads, width]: rms_norm over the head times weight, then rotary embedding of halves. cos and sin are
// [tokens, width / 2]. One warp a head.
extern "C" __global__ void norm_rope_bf16(const size_t rows, const int heads, const int width, const float eps,
                                          const __nv_bfloat162 *x, const __nv_bfloat162 *weight,
                                          const __nv_bfloat162 *cos, const __nv_bfloat162 *sin, __nv_bfloat162 *out) {
  constexpr int kMost = 2;  // widths up to 256
  const size_t row = blockIdx.x * size_t(blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32, quarter = width / 4;
  const size_t start = row * (width / 2), angles = row / heads * quarter;
  float2 first[kMost], second[kMost];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kMost; k++) {
    const int i = lane + 32 * k;
    if (i >= quarter) break;
    first[k] = __bfloat1622float2(x[start + i]);
    second[k] = __bfloat1622float2(x[start + quarter + i]);
    squares += first[k].x * first[k].x + first[k].y * first[k].y + second[k].x * second[k].x + second[k].y * second[k].y;
  }
  const float scale = rsqrtf(sum_of_warp(squares) / width + eps);
#pragma unroll
  for (int k = 0; k < kMost; k++) {
    const int i = lane + 32 * k;
    if (i >= quarter) break;
    const float2 w1 = __bfloat1622float2(weight[i]), w2 = __bfloat1622float2(weight[quarter + i]);
    const float2 c = __bfloat1622float2(cos[angles + i]), s = __bfloat1622float2(sin[angles + i]);
    const float ax = rounded(rounded(first[k].x * scale) * w1.x), ay = rounded(rounded(first[k].y * scale) * w1.y);
    const float bx = rounded(rounded(second[k].x * scale) * w2.x), by = rounded(rounded(second[k].y * scale) * w2.y);
    out[start + i] = __floats2bfloat162_rn(ax * c.x - bx * s.x, ay * c.y - by * s.y);
    out[start + quarter + i] = __floats2bfloat162_rn(bx * c.x + ax * s.x, by * c.y + ay * s.y);
  }
}

// The vision tower's rotary embedding of neighbours, z cos A + rot(z) sin A in f32, where the two of a pair have angles of
// their own. z: rows `stride` elements apart, of heads [heads, width]; cos and sin [tokens, width]; out [tokens, heads,
// width].
extern "C" __global__ void vision_rotary_bf16(const size_t pairs, const int heads, const int width, const size_t stride,
                                              const __nv_bfloat16 *z, const float2 *cos, const float2 *sin,
                                              __nv_bfloat162 *out) {
  const int half = width / 2, row_pairs = heads * half;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < pairs; i += size_t(gridDim.x) * blockDim.x) {
    const size_t token = i / row_pairs;
    const int in_row = i % row_pairs, in_head = in_row % half;
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(z + token * stride + 2 * in_row));
    const float2 c = cos[token * half + in_head], s = sin[token * half + in_head];
    out[i] = __floats2bfloat162_rn(v.x * c.x - v.y * s.x, v.y * c.y + v.x * s.y);
  }
}

// out = gelu(x + bias), exact; rows of `width` elements.
extern "C" __global__ void bias_gelu_bf16(const size_t eights, const int width, const Eight *x, const Eight *bias,
                                          Eight *out) {
  const int per_row = width / 8;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < eights; i += size_t(gridDim.x) * blockDim.x) {
    const Eight a = x[i], b = bias[i % per_row];
    Eight o;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float2 s = __bfloat1622float2(__hadd2(a.pairs[k], b.pairs[k]));
      o.pairs[k] = __floats2bfloat162_rn(0.5f * s.x * (1.0f + erff(s.x * 0.70710678f)),
                                         0.5f * s.y * (1.0f + erff(s.y * 0.70710678f)));
    }
    out[i] = o;
  }
}

// out = x + (delta + bias); rows of `width` elements.
extern "C" __global__ void add_with_bias_bf16(const size_t eights, const int width, const Eight *x, const Eight *delta,
                                              const Eight *bias, Eight *out) {
  const int per_row = width / 8;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < eights; i += size_t(gridDim.x) * blockDim.x) {
    const Eight a = x[i], d = delta[i], b = bias[i % per_row];
    Eight o;
#pragma unroll
    for (int k = 0; k < 4; k++) o.pairs[k] = __hadd2(a.pairs[k], __hadd2(d.pairs[k], b.pairs[k]));
    out[i] = o;
  }
}

// out = x + bias; rows of `width` elements.
extern "C" __global__ void add_bias_bf16(const size_t eights, const int width, const Eight *x, const Eight *bias,
                                         Eight *out) {
  const int per_row = width / 8;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < eights; i += size_t(gridDim.x) * blockDim.x) {
    const Eight a = x[i], b = bias[i % per_row];
    Eight o;
#pragma unroll
    for (int k = 0; k < 4; k++) o.pairs[k] = __hadd2(a.pairs[k], b.pairs[k]);
    out[i] = o;
  }
}
