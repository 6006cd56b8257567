// WKV-7 over rows of any length, sixteen tokens at a time on the tensor cores. Formulas: wkv7.cuh.
//
// Within a chunk, with decay products P_t, write S_t = Z_t diag(P_t / P_m), m the chunk's middle (which keeps
// both P_t / P_m and its inverse within 2^7, so that fp16 holds them). With alpha_t = -kk_t P_t-1 / P_m,
// beta_t = kk_t a_t P_m / P_t, kappa_t = k'_t P_m / P_t and rho_t = r_t P_t / P_m the recurrence becomes
//
//   Z_t = Z_t-1 + u_t beta_t^T + v_t kappa_t^T,   u_t = Z_t-1 alpha_t,   y_t = Z_t rho_t
//
// so that, over the chunk's rows as matrices (tril: s < t; tril': s <= t),
//
//   U = (I - tril(A B^T))^-1 (A Z_0^T + tril(A K^T) V)
//   Y = R Z_0^T + tril'(R B^T) U + tril'(R K^T) V,   Z_16 = Z_0 + U^T B + V^T K
//
// Operands are fp16, sums and the state fp32. A block owns a head of a row, and then of another one: some warps derive
// the next chunk's matrices, while four others, each with 16 rows of S in registers, go through the present one.
#include <algorithm>

#include "wkv7_chunk.cuh"

namespace {

constexpr int kSteppers = 128;                  // threads that step
constexpr int kFewBlocks = 132;                 // up to here a block has a multiprocessor for itself
constexpr int kRowsAtATime = 64;
constexpr int kTokensPerRow = 64;               // a recorded step may have few rows, and blocks without one take time
constexpr int kTiles = kHead / 8;

DEVICE void scale_columns(float (&s)[kTiles][4], const float (&scale)[kHead], int lane) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const float2 by = *reinterpret_cast<const float2*>(&scale[tile * 8 + lane % 4 * 2]);
    s[tile][0] *= by.x;
    s[tile][1] *= by.y;
    s[tile][2] *= by.x;
    s[tile][3] *= by.y;
  }
}

// Stepping warp `warp`: rows 16 warp .. + 15 of S over the chunk, and of y into shared memory.
DEVICE void step(float (&s)[kTiles][4], const Chunk& chunk, Shared& shared, int warp, int lane) {
  scale_columns(s, chunk.middle, lane);
  uint32_t z[kTiles / 2][4], values[4], b[4];
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) to_operand(z[k], s[2 * k], s[2 * k + 1]);
  // All transposed: rows are value channels, columns tokens.
  load_matrices_transposed(values, by_row<kStride>(&chunk.v[0][warp * 16], lane));
  float u[2][4] = {}, y[2][4] = {};
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    load_matrices(b, by_row<kStride>(&chunk.query[0][k * 16], lane));
    multiply(u[0], u[1], z[k], b);
  }
  load_matrices(b, by_row<kSquareStride>(chunk.square[kAlphaKappa][0], lane));
  multiply(u[0], u[1], values, b);
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    load_matrices(b, by_row<kStride>(&chunk.query[kChunk][k * 16], lane));
    multiply(y[0], y[1], z[k], b);
  }
  load_matrices(b, by_row<kSquareStride>(chunk.square[kRhoKappa][0], lane));
  multiply(y[0], y[1], values, b);
  const auto add = [&](const uint32_t(&left)[4], const half* keys) {
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) {
      load_matrices_transposed(b, by_column<kStride>(keys + k * 16, lane));
      multiply(s[2 * k], s[2 * k + 1], left, b);
    }
  };
  add(values, chunk.key[kChunk]);

  uint32_t removed[4];
  to_operand(removed, u[0], u[1]);
  float solved[2][4] = {};
  load_matrices(b, by_row<kSquareStride>(chunk.square[kInverse][0], lane));
  multiply(solved[0], solved[1], removed, b);
  to_operand(removed, solved[0], solved[1]);
  add(removed, chunk.key[0]);
  load_matrices(b, by_row<kSquareStride>(chunk.square[kRhoBeta][0], lane));
  multiply(y[0], y[1], removed, b);
  scale_columns(s, chunk.rest, lane);
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared.y[tile * 8 + lane % 4 * 2 + i % 2][warp * 16 + lane / 4 + i / 2 * 8] = y[tile][i];
    }
  }
}

// Eight lanes a token: GroupNorm, bonus and gate.
DEVICE void finish(const Wkv7& p, const Chunk& chunk, const Shared& shared, int first, int end, int head, int thread) {
  const int t = thread / 8, channel = thread % 8 * 8, column = head * kHead + channel;
  float y[8], v[8], g[8], weight[8], bias[8];
  *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(&shared.y[t][channel]);
  *reinterpret_cast<float4*>(y + 4) = *reinterpret_cast<const float4*>(&shared.y[t][channel + 4]);
  float sum = 0.f, squares = 0.f;
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += y[j];
  const float mean = lane_sum<8>(sum) / kHead;
#pragma unroll
  for (int j = 0; j < 8; ++j) squares += (y[j] - mean) * (y[j] - mean);
  const float scale = rsqrtf(lane_sum<8>(squares) / kHead + kGroupNormEps);
  if (first + t >= end) return;
  to_floats(load8(&chunk.v[t][channel]), v);
  to_floats(load8(&chunk.g[t][channel]), g);
  to_floats(load8(p.ln_weight + column), weight);
  to_floats(load8(p.ln_bias + column), bias);
  const float bonus = chunk.bonus[t];
#pragma unroll
  for (int j = 0; j < 8; ++j) y[j] = ((y[j] - mean) * scale * weight[j] + bias[j] + bonus * v[j]) * g[j];
  store8(p.out + static_cast<int64_t>(first + t) * p.width + column, to_half8(y));
}

DEVICE float2 load_state(const half* p) { return __half22float2(load2(p)); }
DEVICE float2 load_state(const float* p) { return *reinterpret_cast<const float2*>(p); }
DEVICE void store_state(half* p, float2 s) { put(p, s); }
DEVICE void store_state(float* p, float2 s) { *reinterpret_cast<float2*>(p) = s; }

// Tokens: of a chunk per deriving warp. Few blocks are fastest with two (and eight warps), many with four.
template <int Tokens, typename State>
__global__ void __launch_bounds__(kChunk / Tokens * 32 + kSteppers, Tokens == 4 ? 2 : 1)
    wkv7_kernel(const __grid_constant__ Wkv7 p) {
  __shared__ __align__(16) Shared shared;
  constexpr int kDerivers = kChunk / Tokens * 32;
  const int head = blockIdx.x, first_row = singles_of(p) + blockIdx.y, rows = rows_of(p);
  const int lane = threadIdx.x % 32;
  int n = 0;  // chunks of all rows so far: the two in shared memory take turns
  let_next_kernel_start();
  wait_for_previous_kernel();

  if (threadIdx.x < kDerivers) {
    const int warp = threadIdx.x / 32, column = head * kHead + lane * 2;
    const HeadParameters parameters = load_parameters(p, column);
    for (int row = first_row; row < rows; row += gridDim.y) {
      const int begin = p.row_start[row], end = p.row_start[row + 1];
      RawRows<Tokens> raw = load_rows<Tokens>(p, begin + warp * Tokens, end, column);
      for (int base = begin; base < end; base += kChunk, ++n) {
        const int first = base + warp * Tokens;
        Chunk& chunk = shared.chunk[n % 2];
        derive_rows(raw, parameters, end - first, chunk, shared, warp, lane);
        raw = load_rows<Tokens>(p, first + kChunk, end, column);
        team_barrier<1, kDerivers>();
        if (warp < 4) derive_square(chunk, shared, warp, lane);
        __syncthreads();  // this chunk is complete, and the other team has done the one before
      }
    }
  } else {
    const int thread = threadIdx.x - kDerivers, warp = thread / 32;
    for (int row = first_row; row < rows; row += gridDim.y) {
      const int begin = p.row_start[row], end = p.row_start[row + 1];
      State* state = static_cast<State*>(p.state) +
                     (static_cast<int64_t>(p.slots[row]) * (p.width / kHead) + head) * kHead * kHead +
                     (warp * 16 + lane / 4) * kHead + lane % 4 * 2;
      float s[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        *reinterpret_cast<float2*>(s[tile]) = load_state(state + tile * 8);
        *reinterpret_cast<float2*>(s[tile] + 2) = load_state(state + tile * 8 + 8 * kHead);
      }
      for (int base = begin; base < end; base += kChunk, ++n) {
        __syncthreads();
        step(s, shared.chunk[n % 2], shared, warp, lane);
        team_barrier<2, kSteppers>();
        finish(p, shared.chunk[n % 2], shared, base, end, head, thread);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        store_state(state + tile * 8, make_float2(s[tile][0], s[tile][1]));
        store_state(state + tile * 8 + 8 * kHead, make_float2(s[tile][2], s[tile][3]));
      }
    }
  }
}

template <int Tokens>
cudaError_t run(const Wkv7& p, dim3 grid, int float_state, void* stream) {
  const dim3 block(kChunk / Tokens * 32 + kSteppers);
  return float_state ? launch(wkv7_kernel<Tokens, float>, grid, block, 0, stream, p)
                     : launch(wkv7_kernel<Tokens, half>, grid, block, 0, stream, p);
}

}  // namespace

// vectors: w0, a0, v0, k_k, k_a, r_k, ln_x.weight, ln_x.bias, each [width] fp16. lora: [4, tokens, width], w, a, v, g.
// v_first: null in layer 0. singles, rows: how many of the first rows have one token each, and all of them; with
// `counts`, which is on the device, these are the most there may be of the former, and of the latter.
extern "C" int rwkv_wkv7(const void* r, const void* k, const void* v, const void* lora, const void* v_first,
                         const void* const* vectors, void* state, int float_state, const int* slots,
                         const int* row_start, void* out, int rows, int singles, const int* counts, int tokens, int width,
                         void* stream) {
  const half* const* vector = reinterpret_cast<const half* const*>(vectors);
  const auto halves = [](const void* pointer) { return static_cast<const half*>(pointer); };
  const int64_t plane = static_cast<int64_t>(tokens) * width;
  if (plane * static_cast<int64_t>(sizeof(half)) >> 32 != 0) return cudaErrorInvalidValue;
  const half* const planes = halves(lora);
  Wkv7 p = {halves(r), halves(k), halves(v), planes, planes + plane, planes + 2 * plane, planes + 3 * plane,
            halves(v_first),
            vector[0], vector[1], vector[2], vector[3], vector[4], vector[5], vector[6], vector[7],
            state, slots, row_start, static_cast<half*>(out), tokens, width, singles, rows, counts};
  if (v_first == nullptr) {
    p.v_first = p.v;
    p.v_gate = p.w;  // any numbers: there may be none for v in layer 0
  }
  if (singles > 0) {
    const cudaError_t status = wkv7_decode(p, float_state, stream);
    if (status != cudaSuccess) return status;
  }
  const int longer = counts != nullptr ? rows : rows - singles, heads = width / kHead;
  if (longer == 0) return cudaSuccess;
  const int likely = counts != nullptr ? (tokens + kTokensPerRow - 1) / kTokensPerRow : longer;
  const dim3 grid(heads, std::min(likely, kRowsAtATime));
  return heads * likely <= kFewBlocks ? run<2>(p, grid, float_state, stream) : run<4>(p, grid, float_state, stream);
}
