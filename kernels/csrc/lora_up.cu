// The second half of the low-rank projections: out[n] = h_n W2_n^T for n = w, a, v, g.
//
// Products of small depth (ranks of 32 to 480) and full width. A block makes 16 Fragments outputs of each of
// the four. A warp takes 16 of them and up to 128 of the depth of one product, so that all weights are on their
// way at once, before the previous kernel has ended, and stay in registers for all tokens, 8 Columns at a time.
// Fragments are laid out as skinny_gemm.cu describes.
#include "common.cuh"

namespace {

constexpr int kProducts = 4;
constexpr int kSteps = 4;                 // of 32 along the rank, per warp
constexpr int kDepth = kSteps * 32;
constexpr int kFragment = 16;             // outputs per warp
constexpr int kMaxFragments = 2;          // per block
constexpr int kSumStride = kFragment + 4;  // padded, so that a fragment's sums lie in different banks
constexpr int kMaxWarps = 16;

struct LoraUp {
  const half* h;             // [T, ranks]: the four low-rank activations side by side
  const half* w[kProducts];  // [C, rank]
  half* out;                 // [4, T, C]
  int first[kProducts], rank[kProducts];
  int part_end[kProducts];   // parts of the depth: those of product n end before this one
  int tokens, width, ranks;
};

template <int Columns, int Fragments>
__global__ void __launch_bounds__(kMaxWarps * 32) lora_up_kernel(const __grid_constant__ LoraUp p) {
  constexpr int kTokens = Columns * 8, kOutputs = Fragments * kFragment;
  extern __shared__ float sums[];  // [warps][kTokens][kSumStride]
  const int parts = p.part_end[kProducts - 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % parts;
  const int first_output = blockIdx.x * kOutputs;
  let_next_kernel_start();

  int n = 0;
  while (part >= p.part_end[n]) ++n;
  const int begin = (part - (n == 0 ? 0 : p.part_end[n - 1])) * kDepth, rank = p.rank[n];
  const half* w = p.w[n] + static_cast<int64_t>(first_output + warp / parts * kFragment + lane / 4) * rank + (lane % 4) * 8;
  uint4 upper[kSteps], lower[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const int at = begin + i * 32;
    if (at >= rank) break;
    upper[i] = load_weights(w + at);
    lower[i] = load_weights(w + at + static_cast<int64_t>(8) * rank);
  }
  uint4 x[kSteps][Columns];
  const auto load_tokens = [&](int first_token) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = begin + i * 32;
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        const int64_t token = min(first_token + c * 8 + lane / 4, p.tokens - 1);
        const half* from = p.h + token * p.ranks + p.first[n] + at + (lane % 4) * 8;
        if (at < rank) x[i][c] = *reinterpret_cast<const uint4*>(from);
      }
    }
  };
  wait_for_previous_kernel();
  load_tokens(0);

  for (int first_token = 0; first_token < p.tokens; first_token += kTokens) {
    float sum[Columns][4] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (begin + i * 32 >= rank) break;
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        mma(sum[c], upper[i].x, lower[i].x, upper[i].y, lower[i].y, x[i][c].x, x[i][c].y);
        mma(sum[c], upper[i].z, lower[i].z, upper[i].w, lower[i].w, x[i][c].z, x[i][c].w);
      }
    }
    if (first_token + kTokens < p.tokens) load_tokens(first_token + kTokens);
    __syncthreads();  // the previous tokens' sums have been used
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = c * 8 + (lane % 4) * 2 + i % 2, output = lane / 4 + (i / 2) * 8;
        sums[(warp * kTokens + token) * kSumStride + output] = sum[c][i];
      }
    }
    __syncthreads();
    // Two outputs a thread.
    constexpr int kPairs = kOutputs / 2;
    for (int i = threadIdx.x; i < kProducts * kTokens * kPairs; i += blockDim.x) {
      const int product = i / (kTokens * kPairs), token = i / kPairs % kTokens, output = i % kPairs * 2;
      if (first_token + token >= p.tokens) continue;
      float2 total = make_float2(0.f, 0.f);
      for (int term = product == 0 ? 0 : p.part_end[product - 1]; term < p.part_end[product]; ++term) {
        const int from = output / kFragment * parts + term;
        const int at = (from * kTokens + token) * kSumStride + output % kFragment;
        const float2 one = *reinterpret_cast<const float2*>(sums + at);
        total = make_float2(total.x + one.x, total.y + one.y);
      }
      const int64_t at = static_cast<int64_t>(product) * p.tokens + first_token + token;
      *reinterpret_cast<half2*>(p.out + at * p.width + first_output + output) = __floats2half2_rn(total.x, total.y);
    }
  }
}

template <int Columns, int Fragments>
cudaError_t run(const LoraUp& p, void* stream) {
  const int warps = p.part_end[kProducts - 1] * Fragments;
  return launch(lora_up_kernel<Columns, Fragments>, dim3(p.width / (Fragments * kFragment)), dim3(warps * 32),
                warps * Columns * 8 * kSumStride * sizeof(float), stream, p);
}

}  // namespace

// h: [tokens, sum of ranks] fp16; w2: four [width, rank] fp16; out: [4, tokens, width] fp16.
// Ranks are multiples of 32 and take at most sixteen parts of 128 between them; width is a multiple of 32.
extern "C" int rwkv_lora_up(const void* h, const void* const* w2, const int* ranks, void* out, int tokens, int width,
                            void* stream) {
  LoraUp p = {};
  p.h = static_cast<const half*>(h);
  p.out = static_cast<half*>(out);
  p.tokens = tokens;
  p.width = width;
  int parts = 0;
  for (int n = 0; n < kProducts; ++n) {
    if (ranks[n] % 32 != 0) return cudaErrorInvalidValue;
    p.w[n] = static_cast<const half*>(w2[n]);
    p.rank[n] = ranks[n];
    p.first[n] = p.ranks;
    p.ranks += ranks[n];
    p.part_end[n] = parts += (ranks[n] + kDepth - 1) / kDepth;
  }
  if (parts == 0 || parts > kMaxWarps || width % (kMaxFragments * kFragment) != 0) return cudaErrorInvalidValue;
  if (tokens <= 8) return run<1, 1>(p, stream);
  if (tokens <= 16) return run<2, 1>(p, stream);
  return parts * kMaxFragments <= kMaxWarps ? run<4, kMaxFragments>(p, stream) : run<4, 1>(p, stream);
}
