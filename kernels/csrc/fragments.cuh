// Matrices of fp16 in shared memory as operands of mma.m16n8k16, and its sums as operands of the next.
#pragma once

#include "common.cuh"

// Four 8 x 8 matrices of fp16; lane l gives the address of row l % 8 of matrix l / 8.
DEVICE void load_matrices(uint32_t (&r)[4], const half* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p))));
}
DEVICE void load_matrices_transposed(uint32_t (&r)[4], const half* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p))));
}
// The quarters of a 16 x 16 matrix, in the orders (rows, columns): 00 01 10 11 and 00 10 01 11.
template <int Stride>
DEVICE const half* by_row(const half* p, int lane) {
  return p + (lane % 8 + (lane / 16) * 8) * Stride + (lane / 8 % 2) * 8;
}
template <int Stride>
DEVICE const half* by_column(const half* p, int lane) {
  return p + lane % 16 * Stride + (lane / 16) * 8;
}

// An 8 x 8 matrix of fp16 across the warp: lane l has columns 2 (l % 4) and the next of row l / 4.
DEVICE uint32_t transposed(uint32_t two) {
  uint32_t of_transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(of_transposed) : "r"(two));
  return of_transposed;
}

DEVICE uint32_t packed(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// The sums of a 16 x 16 product, as the left operand of the next.
DEVICE void to_operand(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = packed(left[0], left[1]);
  a[1] = packed(left[2], left[3]);
  a[2] = packed(right[0], right[1]);
  a[3] = packed(right[2], right[3]);
}
// d [16 x 16] += a b^T, where b holds its quarters by row.
DEVICE void multiply(float (&left)[4], float (&right)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  mma(left, a[0], a[1], a[2], a[3], b[0], b[1]);
  mma(right, a[0], a[1], a[2], a[3], b[2], b[3]);
}
