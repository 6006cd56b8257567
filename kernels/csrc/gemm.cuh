// What the products of few rows, skinny_gemm.cu and hopper_gemm.cu, have in common.
#pragma once

#include "common.cuh"

constexpr int kMaxGroups = 8;

enum Activation : int { kNone = 0, kReluSquared = 1, kTanh = 2, kSigmoid = 3 };

DEVICE float activated(float v, int activation) {
  if (activation == kReluSquared) {
    v = fmaxf(v, 0.f);
    return v * v;
  }
  if (activation == kTanh) return tanhf(v);
  if (activation == kSigmoid) return sigmoid(v);
  return v;
}
