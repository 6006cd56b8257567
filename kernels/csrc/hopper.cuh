// Hopper's instructions in C++: shared-memory barriers, the copy engine (TMA), warpgroup products (wgmma).
// Shared memory is named by its 32-bit address.
#pragma once

#include <cuda.h>

#include "common.cuh"

DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

DEVICE void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// After the initialisations, before the copy engine uses the barriers.
DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

DEVICE void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The phase ends when this many bytes have been copied, too.
DEVICE void arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void wait_for_phase(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// How long L2 should keep what is copied.
constexpr uint64_t kEvictFirst = 0x12F0000000000000;
constexpr uint64_t kEvictLast = 0x14F0000000000000;

// Copies the box at (row, k) of a matrix; rows past its end come as zeros.
DEVICE void copy_box(uint32_t to, const CUtensorMap& map, int k, int row, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(k), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

// The box of fragments that begins at `fragment`; those past the end come as zeros. See describe_fragments.
DEVICE void copy_fragments(uint32_t to, const CUtensorMap& map, int k, int fragment, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, 0, 0, 0, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(k), "r"(fragment), "r"(barrier), "l"(policy)
      : "memory");
}

// What wgmma reads: rows of 128 bytes, swizzled in groups of eight, at a multiple of 1024 bytes.
DEVICE uint64_t descriptor(uint32_t shared) {
  return static_cast<uint64_t>((shared & 0x3ffff) >> 4) | (uint64_t{1} << 16) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 62);
}
constexpr uint64_t kDescriptorK16 = 32 >> 4;         // 16 values of k further

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until no more than `Pending` of the last groups of products are under way.
template <int Pending>
DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// d [64, 8 J] += a [64, 16] b [8 J, 16]^T. Warp w of the four has rows 16 w ..; lane l has, of columns 8 j .., in d[j]
// columns 2 (l % 4) and the next of row l / 4, then of row l / 4 + 8.
template <int J>
DEVICE void multiply(float (*d)[4], uint64_t a, uint64_t b);

#define D4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
template <>
DEVICE void multiply<1>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
               : D4(0)
               : "l"(a), "l"(b));
}
template <>
DEVICE void multiply<2>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, 1, 1, 1, 0, 0;"
      : D4(0), D4(1)
      : "l"(a), "l"(b));
}
template <>
DEVICE void multiply<4>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, 1, 1, 1, 0, 0;"
      : D4(0), D4(1), D4(2), D4(3)
      : "l"(a), "l"(b));
}
template <>
DEVICE void multiply<8>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
      : D4(0), D4(1), D4(2), D4(3), D4(4), D4(5), D4(6), D4(7)
      : "l"(a), "l"(b));
}
template <>
DEVICE void multiply<16>(float (*d)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
      : D4(0), D4(1), D4(2), D4(3),
        D4(4), D4(5), D4(6), D4(7),
        D4(8), D4(9), D4(10), D4(11),
        D4(12), D4(13), D4(14), D4(15)
      : "l"(a), "l"(b));
}
#undef D4

// Between blocks, through memory.
DEVICE void add_release(unsigned* to, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

DEVICE unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// How a row-major fp16 matrix lies, for the copy engine, which brings boxes of 64 values of k, swizzled for wgmma.
template <int Dimensions>
bool describe(CUtensorMap* map, const void* matrix, const cuuint64_t (&size)[Dimensions],
              const cuuint64_t (&stride)[Dimensions - 1], const cuuint32_t (&box)[Dimensions]) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* found = nullptr;  // the driver's functions are found at run time, so that nothing links against it
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status);
#endif
    return status == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found) : nullptr;
  }();
  cuuint32_t step[Dimensions];
  for (auto& one : step) one = 1;
  return encode != nullptr &&
         encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, Dimensions, const_cast<void*>(matrix), size, stride, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

inline bool describe_matrix(CUtensorMap* map, const void* matrix, int rows, int k, int stride, int box_rows) {
  const cuuint64_t row = static_cast<cuuint64_t>(stride) * sizeof(half);
  return describe<2>(map, matrix, {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)}, {row},
                     {64, static_cast<cuuint32_t>(box_rows)});
}

// A matrix as fragments of 16 rows. With `interleaved` their rows come in the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15,
// in which a lane that holds rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of those that came has four successive ones.
constexpr int kFragment = 16;
inline bool describe_fragments(CUtensorMap* map, const void* matrix, int rows, int k, int box, bool interleaved) {
  const cuuint64_t row = static_cast<cuuint64_t>(k) * sizeof(half), count = static_cast<cuuint64_t>(rows) / kFragment;
  const cuuint64_t quad = interleaved ? 4 * row : 2 * row, half_fragment = interleaved ? 2 * row : 8 * row;
  return describe<5>(map, matrix, {static_cast<cuuint64_t>(k), 2, 4, 2, count},
                     {row, quad, half_fragment, kFragment * row}, {64, 2, 4, 2, static_cast<cuuint32_t>(box)});
}
