// What the two WKV-7 kernels share: parameters, constants, and how a state is stored.
#pragma once

#include "common.cuh"

constexpr int kHead = 64;
constexpr int kColumns = 16;  // of S per thread: 8 q .. + 7 and 32 + 8 q .. + 7 for lane q of 4
constexpr float kDecayScale = -0.60653065971263342f;  // -e^-0.5
constexpr float kGroupNormEps = 64e-5f;

struct Wkv7 {
  const half *r, *k, *v;  // [T, C]
  const half* lora;       // [4, T, C]: w, a, v, g before bias and sigmoid
  const half* v_first;    // [T, C], or null in layer 0
  const half *w0, *a0, *v0, *k_k, *k_a, *r_k, *ln_weight, *ln_bias;  // [C]
  void* state;            // [slots, H, 64, 64]
  const int* slots;       // [rows]
  const int* row_start;   // [rows + 1]
  half* out;              // [T, C]
  int tokens, width;
};

DEVICE void load_state(const half* p, float* s) { to_floats(load8(p), s); }
DEVICE void load_state(const float* p, float* s) {
  *reinterpret_cast<float4*>(s) = *reinterpret_cast<const float4*>(p);
  *reinterpret_cast<float4*>(s + 4) = *reinterpret_cast<const float4*>(p + 4);
}
DEVICE void store_state(half* p, const float* s) { store8(p, to_half8(s)); }
DEVICE void store_state(float* p, const float* s) {
  *reinterpret_cast<float4*>(p) = *reinterpret_cast<const float4*>(s);
  *reinterpret_cast<float4*>(p + 4) = *reinterpret_cast<const float4*>(s + 4);
}

// One token per row: see wkv7_decode.cu.
cudaError_t wkv7_decode(const Wkv7& p, int rows, int float_state, void* stream);
