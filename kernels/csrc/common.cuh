// What every kernel here shares: vector access, warp sums, and programmatic dependent launch.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#define DEVICE __device__ __forceinline__
#define HOST_DEVICE __host__ DEVICE

// Programmatic dependent launch (Hopper and later): a kernel may start while the one before it in the
// stream still runs, and has to wait before it touches anything that one writes. Weights are never
// written, so their loads can be on their way before the wait.
DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Eight halves, moved as 16 bytes.
struct alignas(16) Half8 {
  half2 pair[4];
};

// Through uint4: a struct of half2 is copied member by member, in four accesses of 4 bytes.
DEVICE Half8 load8(const half* p) {
  Half8 v;
  *reinterpret_cast<uint4*>(&v) = *reinterpret_cast<const uint4*>(p);
  return v;
}
DEVICE void store8(half* p, const Half8& v) { *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&v); }

// Weights are read once per step: keep them out of L1, and let them be the first to leave L2.
DEVICE uint4 load_weights(const half* p) {
  uint4 v;
#if __CUDA_ARCH__ >= 800
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
#else
  v = __ldg(reinterpret_cast<const uint4*>(p));
#endif
  return v;
}

DEVICE void to_floats(const Half8& v, float* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __half22float2(v.pair[i]);
    out[2 * i] = f.x;
    out[2 * i + 1] = f.y;
  }
}

DEVICE Half8 to_half8(const float* in) {
  Half8 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) v.pair[i] = __floats2half2_rn(in[2 * i], in[2 * i + 1]);
  return v;
}

// Sum over groups of `Lanes` neighbouring lanes; every lane gets it.
template <int Lanes>
DEVICE float lane_sum(float x) {
#pragma unroll
  for (int step = Lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// d += a b on the tensor cores: 16 x 16 by 16 x 8, fp16 with fp32 sums.
DEVICE void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750  // the same in two halves of k
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%8}, {%0,%1,%2,%3};\n"
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%6,%7}, {%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

// How much shared memory a block of this device may have.
inline int shared_bytes() {
  static const int bytes = [] {
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return most;
  }();
  return bytes;
}

// Launch with leave to start before the previous kernel ends, where the device can do that.
template <typename... Params, typename... Args>
inline cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, void* stream, Args... args) {
  static int major = -1;
  if (major < 0) {
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Params(args)...);
}
