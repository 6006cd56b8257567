// What the two WKV-7 kernels share: parameters, and the vectors of a head that they derive per token.
//
// From the raw outputs of the projections, per head (RWKV-7 paper, arXiv:2503.14456, section 4):
//
//   w = w0 + w_lora;  decay = exp(-e^-0.5 sigmoid(w));  a = sigmoid(a0 + a_lora)
//   kk = k k_k / max(|k k_k|, 1e-12);  k' = k (1 + (a - 1) k_a)
//   v' = v + (v_first - v) sigmoid(v0 + v_lora)           (layer 0: v' = v)
//   S_ij = S_ij decay_j - (sum_j S_ij kk_j) (kk_j a_j) + v'_i k'_j;   y_i = sum_j S_ij r_j
//   out = (GroupNorm(y) ln_w + ln_b + (sum_j r_j k'_j r_k_j) v') g
#pragma once

#include "common.cuh"

constexpr int kHead = 64;
constexpr float kLog2Decay = -0.60653065971263342f * 1.4426950408889634f;  // -e^-0.5, for powers of two
constexpr float kGroupNormEps = 64e-5f;

struct Wkv7 {
  const half *r, *k, *v;  // [T, C]
  const half *w, *a, *v_gate, *g;  // [T, C], before bias and sigmoid
  const half* v_first;    // [T, C]; in layer 0 v itself, whatever v_gate then is
  const half *w0, *a0, *v0, *k_k, *k_a, *r_k, *ln_weight, *ln_bias;  // [C]
  void* state;            // [slots, H, 64, 64]
  const int* slots;       // [rows]
  const int* row_start;   // [rows + 1]
  half* out;              // [T, C]
  int tokens, width;
  // The first `singles` of the `rows` have one token each. A recorded step has both in memory, as they are not the same
  // each time, and here the most there may be.
  int singles, rows;
  const int* counts;      // singles, rows; or null
};

DEVICE int singles_of(const Wkv7& p) { return p.counts != nullptr ? p.counts[0] : p.singles; }
DEVICE int rows_of(const Wkv7& p) { return p.counts != nullptr ? p.counts[1] : p.rows; }

DEVICE float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
DEVICE float2 operator-(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
DEVICE float2 operator*(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
DEVICE float2 operator*(float2 a, float b) { return make_float2(a.x * b, a.y * b); }
DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float fast_sigmoid(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.f + power_of_two(x * -1.4426950408889634f)));
  return y;
}
DEVICE float2 power_of_two(float2 a) { return make_float2(power_of_two(a.x), power_of_two(a.y)); }
DEVICE float2 sigmoid(float2 a) { return make_float2(fast_sigmoid(a.x), fast_sigmoid(a.y)); }
DEVICE half2 load2(const half* p) { return *reinterpret_cast<const half2*>(p); }

// A warp takes a token's head: two channels a lane.
struct HeadParameters {
  half2 w0, a0, v0, k_k, k_a, r_k;
};

DEVICE HeadParameters load_parameters(const Wkv7& p, int column) {
  return {load2(p.w0 + column),  load2(p.a0 + column),  load2(p.v0 + column),
          load2(p.k_k + column), load2(p.k_a + column), load2(p.r_k + column)};
}

struct RawVectors {
  half2 r, k, v, w, a, v_gate, v_first, g;
};

// T C halves are less than 4 GiB, so that one 32-bit offset serves all eight.
DEVICE RawVectors load_raw(const Wkv7& p, int token, int column) {
  const uint32_t at = static_cast<uint32_t>(token) * p.width + column;
  return {load2(p.r + at), load2(p.k + at),      load2(p.v + at),       load2(p.w + at),
          load2(p.a + at), load2(p.v_gate + at), load2(p.v_first + at), load2(p.g + at)};
}

struct HeadVectors {
  float2 r, k, v;
  float2 kk, kka;      // k k_k and that times a: the caller divides by the norm
  float2 log2_decay;
  float squares;       // this lane's part of |k k_k|^2
  float bonus;         // and of sum_j r_j k'_j r_k_j
};

DEVICE HeadVectors derive(const RawVectors& raw, const HeadParameters& parameters) {
  const auto f = [](half2 pair) { return __half22float2(pair); };
  HeadVectors x;
  x.r = f(raw.r);
  x.v = f(raw.v);
  x.v = x.v + (f(raw.v_first) - x.v) * sigmoid(f(parameters.v0) + f(raw.v_gate));
  const float2 k = f(raw.k), one = make_float2(1.f, 1.f);
  const float2 a = sigmoid(f(parameters.a0) + f(raw.a));
  x.log2_decay = sigmoid(f(parameters.w0) + f(raw.w)) * kLog2Decay;
  x.kk = k * f(parameters.k_k);
  x.kka = x.kk * a;
  x.k = k * (one + (a - one) * f(parameters.k_a));
  x.squares = x.kk.x * x.kk.x + x.kk.y * x.kk.y;
  const float2 rkr = x.r * x.k * f(parameters.r_k);
  x.bonus = rkr.x + rkr.y;
  return x;
}

// The rows of one token: see wkv7_decode.cu.
cudaError_t wkv7_decode(const Wkv7& p, int float_state, void* stream);
