// The matrices of a chunk of sixteen tokens, derived into shared memory. Formulas: wkv7.cu.
#pragma once

#include "fragments.cuh"
#include "wkv7.cuh"

constexpr int kChunk = 16;
constexpr int kMaxDerivingWarps = 8;
constexpr int kStride = kHead + 8;              // padded, so that eight rows lie in different banks
constexpr int kSquareStride = kChunk + 8;
constexpr int kYStride = kHead + 4;

enum Square { kInverse, kAlphaKappa, kRhoBeta, kRhoKappa };  // 16 x 16: token t, earlier token s

struct Chunk {
  half query[2 * kChunk][kStride];  // alpha, then rho
  half key[2 * kChunk][kStride];    // beta, then kappa
  half v[kChunk][kStride], g[kChunk][kStride];
  half square[4][kChunk][kSquareStride];
  float bonus[kChunk];
  float middle[kHead], rest[kHead];  // P_m, and P_16 / P_m
};

struct Shared {
  Chunk chunk[2];
  float y[kChunk][kYStride];
  float mixing[kChunk][kChunk];      // tril(A B^T), transposed
  float2 decayed[kMaxDerivingWarps][kHead / 2];  // log2 of the decay over each warp's tokens
};

// A barrier of one of the two teams. 0 is that of the block.
template <int Name, int Threads>
DEVICE void team_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(Name), "n"(Threads) : "memory");
}

DEVICE void put(half* p, float2 value) { *reinterpret_cast<half2*>(p) = __floats2half2_rn(value.x, value.y); }
// A factor of up to 2^7 must not turn a large r or k into infinity.
DEVICE void put_bounded(half* p, float2 value) {
  const half2 most = __float2half2_rn(65504.f);
  *reinterpret_cast<half2*>(p) = __hmax2(__hmin2(__floats2half2_rn(value.x, value.y), most), __hneg2(most));
}

// What a deriving warp reads of a chunk: `Tokens` of its sixteen.
template <int Tokens>
struct RawRows {
  RawVectors token[Tokens];
};

// A token past the end is read as the last one.
template <int Tokens>
DEVICE RawRows<Tokens> load_rows(const Wkv7& p, int first, int end, int column) {
  RawRows<Tokens> raw;
#pragma unroll
  for (int i = 0; i < Tokens; ++i) raw.token[i] = load_raw(p, min(first + i, end - 1), column);
  return raw;
}

// Sums over the warp of `Count` values; lane 32 / Count i and its neighbours get that of value i.
template <int Count>
DEVICE float scattered_sums(float (&x)[Count], int lane) {
#pragma unroll
  for (int step = 16, count = Count / 2; count > 0; step /= 2, count /= 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const bool upper = lane & step;
      x[i] = (upper ? x[i + count] : x[i]) + __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + count], step);
    }
  }
  return lane_sum<32 / Count>(x[0]);
}

// Deriving warp `warp`: its tokens' rows of the chunk. Of a token past the end, beta, kappa and the
// decay's logarithm are zero, so that it changes nothing.
template <int Tokens>
DEVICE void derive_rows(const RawRows<Tokens>& raw, const HeadParameters& parameters, int present, Chunk& chunk,
                        Shared& shared, int warp, int lane) {
  constexpr int kWarps = kChunk / Tokens, kLanes = 16 / Tokens;  // lanes that share a token's sums
  HeadVectors x[Tokens];
  float2 decayed[Tokens + 1] = {};
  float sums[2 * Tokens];
#pragma unroll
  for (int i = 0; i < Tokens; ++i) {
    x[i] = derive(raw.token[i], parameters);
    decayed[i + 1] = decayed[i] + x[i].log2_decay * (i < present ? 1.f : 0.f);
    sums[i] = x[i].squares;
    sums[Tokens + i] = x[i].bonus;
    put(&chunk.v[warp * Tokens + i][lane * 2], x[i].v);
    *reinterpret_cast<half2*>(&chunk.g[warp * Tokens + i][lane * 2]) = raw.token[i].g;
  }
  shared.decayed[warp][lane] = decayed[Tokens];
  const float sum = scattered_sums(sums, lane);
  if (lane >= 16 && lane % kLanes == 0) chunk.bonus[warp * Tokens + (lane - 16) / kLanes] = sum;
  const float norm = rsqrtf(fmaxf(sum, 1e-24f));
  team_barrier<1, kWarps * 32>();

  float2 middle = {}, rest = {}, passed = {};  // log2 of the decay: to the middle, from there, to this warp's tokens
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const float2 one = shared.decayed[i][lane];
    if (i < kWarps / 2) {
      middle = middle + one;
    } else {
      rest = rest + one;
    }
    if (i < warp) passed = passed + one;
  }
  if (warp == 0) {
    *reinterpret_cast<float2*>(&chunk.middle[lane * 2]) = power_of_two(middle);
    *reinterpret_cast<float2*>(&chunk.rest[lane * 2]) = power_of_two(rest);
  }
  const float2 before = passed - middle;
  float2 earlier = power_of_two(before);
#pragma unroll
  for (int i = 0; i < Tokens; ++i) {
    const float2 exponent = before + decayed[i + 1];
    const float2 now = power_of_two(exponent), inverse = power_of_two(exponent * -1.f);
    const float scale = __shfl_sync(0xffffffffu, norm, i * kLanes), counts = i < present ? 1.f : 0.f;
    const int t = warp * Tokens + i;
    put(&chunk.query[t][lane * 2], x[i].kk * earlier * -scale);
    put_bounded(&chunk.query[kChunk + t][lane * 2], x[i].r * now);
    put(&chunk.key[t][lane * 2], x[i].kka * inverse * (scale * counts));
    put_bounded(&chunk.key[kChunk + t][lane * 2], x[i].k * inverse * counts);
    earlier = now;
  }
}

// Lanes 0 to 15: column `lane` of (I - M)^-1 for the strictly lower triangular M, by substitution.
DEVICE void invert(const float (&transposed)[kChunk][kChunk], half (&inverse)[kChunk][kSquareStride], int lane) {
  float x[kChunk];
#pragma unroll
  for (int t = 0; t < kChunk; ++t) x[t] = t == lane % kChunk ? 1.f : 0.f;
#pragma unroll
  for (int s = 0; s < kChunk - 1; ++s) {
    float column[kChunk];
#pragma unroll
    for (int t = (s + 1) / 4 * 4; t < kChunk; t += 4) {
      *reinterpret_cast<float4*>(column + t) = *reinterpret_cast<const float4*>(&transposed[s][t]);
    }
#pragma unroll
    for (int t = s + 1; t < kChunk; ++t) x[t] += column[t] * x[s];
  }
  if (lane >= kChunk) return;
#pragma unroll
  for (int t = 0; t < kChunk; ++t) inverse[t][lane] = __float2half_rn(x[t]);
}

// Deriving warp `which`: one of the four squares, from the rows that all have written.
DEVICE void derive_square(Chunk& chunk, Shared& shared, int which, int lane) {
  const half* query = chunk.query[which / 2 * kChunk];
  const half* key = chunk.key[which % 2 * kChunk];
  float sums[2][4] = {};
#pragma unroll
  for (int k = 0; k < kHead; k += 16) {
    uint32_t a[4], b[4];
    load_matrices(a, by_column<kStride>(query + k, lane));
    load_matrices(b, by_row<kStride>(key + k, lane));
    multiply(sums[0], sums[1], a, b);
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int t = lane / 4 + i / 2 * 8, s = tile * 8 + lane % 4 * 2;
      const int seen = which < kRhoBeta ? t : t + 1;  // tokens that t sees
      const float low = s < seen ? sums[tile][i] : 0.f, high = s + 1 < seen ? sums[tile][i + 1] : 0.f;
      if (which == kInverse) {
        shared.mixing[s][t] = low;
        shared.mixing[s + 1][t] = high;
      } else {
        put_bounded(&chunk.square[which][t][s], make_float2(low, high));
      }
    }
  }
  if (which != kInverse) return;
  __syncwarp();
  invert(shared.mixing, chunk.square[kInverse], lane);
}
