// The second half of the low-rank projections: out[n] = h_n W2_n^T for n = w, a, v, g.
//
// Products of small depth (ranks of 32 to 480) and full width. A warp computes 16 outputs x 8 Columns
// tokens over the whole rank, in the fragment layout that skinny_gemm.cu describes.
#include "common.cuh"

namespace {

constexpr int kWarps = 8;

struct LoraUp {
  const half* h;      // [T, ranks]: the four low-rank activations side by side
  const half* w[4];   // [C, rank]
  half* out;          // [4, T, C]
  int first[4], rank[4];
  int tokens, width, ranks;
};

template <int Columns>
__global__ void __launch_bounds__(kWarps * 32) lora_up_kernel(const __grid_constant__ LoraUp p) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int n = blockIdx.z, rank = p.rank[n];
  const int first_output = (blockIdx.x * kWarps + warp) * 16;
  const int first_token = blockIdx.y * Columns * 8;
  let_next_kernel_start();
  const bool inside = first_output < p.width;
  const half* w = p.w[n] + static_cast<int64_t>(first_output + lane / 4) * rank + (lane % 4) * 8;
  constexpr int kAhead = 4;
  uint4 upper[kAhead], lower[kAhead];
  const int steps = rank / 32;
  const auto load = [&](int step, int slot) {
    if (!inside || step >= steps) return;
    upper[slot] = *reinterpret_cast<const uint4*>(w + step * 32);
    lower[slot] = *reinterpret_cast<const uint4*>(w + step * 32 + static_cast<int64_t>(8) * rank);
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) load(slot, slot);
  wait_for_previous_kernel();
  if (!inside) return;

  float sum[Columns][4] = {};
  for (int begin = 0; begin < steps; begin += kAhead) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      if (begin + slot >= steps) break;
      uint4 x[Columns];
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        const int64_t token = min(first_token + c * 8 + lane / 4, p.tokens - 1);
        x[c] = *reinterpret_cast<const uint4*>(p.h + token * p.ranks + p.first[n] + (begin + slot) * 32 + (lane % 4) * 8);
      }
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        mma(sum[c], upper[slot].x, lower[slot].x, upper[slot].y, lower[slot].y, x[c].x, x[c].y);
        mma(sum[c], upper[slot].z, lower[slot].z, upper[slot].w, lower[slot].w, x[c].z, x[c].w);
      }
      load(begin + slot + kAhead, slot);
    }
  }
  half* out = p.out + static_cast<int64_t>(n) * p.tokens * p.width;
#pragma unroll
  for (int c = 0; c < Columns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = first_token + c * 8 + (lane % 4) * 2 + i % 2;
      const int output = first_output + lane / 4 + (i / 2) * 8;
      if (token < p.tokens) out[token * p.width + output] = __float2half_rn(sum[c][i]);
    }
  }
}

template <int Columns>
cudaError_t run(const LoraUp& p, void* stream) {
  const dim3 grid((p.width / 16 + kWarps - 1) / kWarps, (p.tokens + Columns * 8 - 1) / (Columns * 8), 4);
  return launch(lora_up_kernel<Columns>, grid, dim3(kWarps * 32), 0, stream, p);
}

}  // namespace

// h: [tokens, sum of ranks] fp16; w2: four [width, rank] fp16; out: [4, tokens, width] fp16. Ranks are multiples of 32.
extern "C" int rwkv_lora_up(const void* h, const void* const* w2, const int* ranks, void* out, int tokens, int width,
                            void* stream) {
  LoraUp p = {};
  p.h = static_cast<const half*>(h);
  p.out = static_cast<half*>(out);
  p.tokens = tokens;
  p.width = width;
  for (int n = 0; n < 4; ++n) {
    if (ranks[n] % 32 != 0) return cudaErrorInvalidValue;
    p.w[n] = static_cast<const half*>(w2[n]);
    p.rank[n] = ranks[n];
    p.first[n] = p.ranks;
    p.ranks += ranks[n];
  }
  if (tokens <= 8) return run<1>(p, stream);
  if (tokens <= 16) return run<2>(p, stream);
  if (tokens <= 256) return run<4>(p, stream);
  return run<8>(p, stream);
}
