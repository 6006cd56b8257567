// y = act(x W^T) for few rows of x (up to 64), bound by the bandwidth at which W is read.
//
// W [N, K] is the left operand of mma.m16n8k16 and x [M, K] the right one. The order of k within a
// product is free, so both fragments are 16-byte loads from row-major memory: lane l holds
// k = 8 (l % 4) .. + 7 of its row, which serves two products. Weights go from memory to registers
// without a stop; a ring of loads, which runs on across tiles, keeps them coming.
//
// A block computes tiles of 32 rows of W, its warps splitting K; the grid is as large as the device,
// and each block takes every grid-th tile. Several products with inputs and outputs of their own
// (r, k, v and the low-rank projections) are one launch.
#include "gemm.cuh"

namespace {

constexpr int kTileRows = 32;  // two fragments of 16
constexpr int kStepK = 32;

struct Group {
  const half* x;  // [M, K]
  const half* w;  // [rows, K]
  void* y;        // [M, y_stride] fp16, or fp32 with `float_out`
  int rows;       // a multiple of 32
  int first_tile;
  int y_stride;
  int activation;
};

struct Groups {
  Group group[kMaxGroups];
  int count;
  int tiles;
};

// Columns: fragments of 8 rows of x. Warps: they split K. Ring: loads of W in flight per lane, in steps.
template <int Columns, int Warps, int Ring, bool FloatOut>
__global__ void __launch_bounds__(Warps * 32, 1)
    skinny_gemm_kernel(const __grid_constant__ Groups groups, int m, int k) {
  extern __shared__ float partial[];  // [Warps][kTileRows][Columns * 8 + 2]
  constexpr int kPitch = Columns * 8 + 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int steps = k / (kStepK * Warps);  // per tile and warp
  const int k_begin = warp * steps * kStepK + (lane % 4) * 8;

  // The stream of weights this lane reads: tile after tile, step after step.
  int load_tile = blockIdx.x, load_step = 0, load_group = 0;
  const half* load_at = nullptr;
  auto seek = [&]() {
    while (load_group + 1 < groups.count && load_tile >= groups.group[load_group + 1].first_tile) ++load_group;
    const Group& g = groups.group[load_group];
    load_at = g.w + static_cast<int64_t>((load_tile - g.first_tile) * kTileRows + lane / 4) * k + k_begin;
  };
  uint4 ring[Ring][4];
  auto load_next = [&](int slot) {
    if (load_tile >= groups.tiles) return;
    if (load_step == 0) seek();
    const half* p = load_at + load_step * kStepK;
#pragma unroll
    for (int i = 0; i < 4; ++i) ring[slot][i] = load_weights(p + static_cast<int64_t>(8 * i) * k);
    if (++load_step == steps) {
      load_step = 0;
      load_tile += gridDim.x;
    }
  };
  let_next_kernel_start();
#pragma unroll
  for (int slot = 0; slot < Ring; ++slot) load_next(slot);
  wait_for_previous_kernel();  // only x depends on it

  int group = 0;
  for (int tile = blockIdx.x; tile < groups.tiles; tile += gridDim.x) {
    while (group + 1 < groups.count && tile >= groups.group[group + 1].first_tile) ++group;
    const Group& g = groups.group[group];
    float sum[2][Columns][4] = {};
    uint4 b[Columns];
    auto load_x = [&](int step) {
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        const int row = min(c * 8 + lane / 4, m - 1);  // rows past the end are computed and not stored
        b[c] = *reinterpret_cast<const uint4*>(g.x + static_cast<int64_t>(row) * k + k_begin + step * kStepK);
      }
    };
    load_x(0);
    for (int step = 0; step < steps; step += Ring) {
#pragma unroll
      for (int slot = 0; slot < Ring; ++slot) {
        uint4 x[Columns];
#pragma unroll
        for (int c = 0; c < Columns; ++c) x[c] = b[c];
        if (step + slot + 1 < steps) load_x(step + slot + 1);
#pragma unroll
        for (int half_tile = 0; half_tile < 2; ++half_tile) {
          const uint4 upper = ring[slot][2 * half_tile], lower = ring[slot][2 * half_tile + 1];
#pragma unroll
          for (int c = 0; c < Columns; ++c) {
            mma(sum[half_tile][c], upper.x, lower.x, upper.y, lower.y, x[c].x, x[c].y);
            mma(sum[half_tile][c], upper.z, lower.z, upper.w, lower.w, x[c].z, x[c].w);
          }
        }
        load_next(slot);
      }
    }

    // The warps' sums over their parts of K, then the activation.
    float* mine = partial + warp * kTileRows * kPitch;
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
#pragma unroll
      for (int c = 0; c < Columns; ++c) {
        const int row = half_tile * 16 + lane / 4, column = c * 8 + (lane % 4) * 2;
        *reinterpret_cast<float2*>(mine + row * kPitch + column) =
            make_float2(sum[half_tile][c][0], sum[half_tile][c][1]);
        *reinterpret_cast<float2*>(mine + (row + 8) * kPitch + column) =
            make_float2(sum[half_tile][c][2], sum[half_tile][c][3]);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kTileRows * m; i += Warps * 32) {
      const int row = i % kTileRows, column = i / kTileRows;
      float v = 0.f;
#pragma unroll
      for (int w = 0; w < Warps; ++w) v += partial[(w * kTileRows + row) * kPitch + column];
      v = activated(v, g.activation);
      const int64_t at = static_cast<int64_t>(column) * g.y_stride + (tile - g.first_tile) * kTileRows + row;
      if constexpr (FloatOut) {
        static_cast<float*>(g.y)[at] = v;
      } else {
        static_cast<half*>(g.y)[at] = __float2half_rn(v);
      }
    }
    __syncthreads();
  }
}

template <int Columns, int Warps>
constexpr int kSharedBytes = sizeof(float) * Warps * kTileRows * (Columns * 8 + 2);

template <int Columns, int Warps, int Ring>
cudaError_t run(const Groups& groups, int m, int k, bool float_out, int blocks, void* stream) {
  constexpr int shared = kSharedBytes<Columns, Warps>;
  auto with = [&](auto kernel) {
    if (shared > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    return launch(kernel, dim3(min(groups.tiles, blocks)), dim3(Warps * 32), shared, stream, groups, m, k);
  };
  return float_out ? with(skinny_gemm_kernel<Columns, Warps, Ring, true>)
                   : with(skinny_gemm_kernel<Columns, Warps, Ring, false>);
}

template <int Columns>
cudaError_t by_depth(const Groups& groups, int m, int k, bool float_out, int blocks, void* stream) {
  // Every warp's share of K must be whole rings of steps. Wide x takes the registers of a longer ring, and the sums of
  // many warps more shared memory than Turing has.
  constexpr int kWarps = Columns <= 4 ? 16 : 8;
  constexpr int kRing = Columns == 4 ? 2 : 4;
  const auto fits = [k](int warps, int ring, int bytes) {
    return k % (kStepK * warps * ring) == 0 && bytes <= shared_bytes();
  };
  if (fits(kWarps, kRing, kSharedBytes<Columns, kWarps>)) {
    return run<Columns, kWarps, kRing>(groups, m, k, float_out, blocks, stream);
  }
  if (fits(8, 1, kSharedBytes<Columns, 8>)) return run<Columns, 8, 1>(groups, m, k, float_out, blocks, stream);
  return run<Columns, 4, 1>(groups, m, k, float_out, blocks, stream);
}

}  // namespace

// For each of `count` groups: y[m][rows] = act(x[m, k] w[rows, k]^T). m <= 64, k a multiple of 128, rows of 32.
extern "C" int rwkv_skinny_gemm(int count, const void* const* x, const void* const* w, void* const* y, const int* rows,
                                const int* y_stride, const int* activation, int m, int k, int float_out, int blocks,
                                void* stream) {
  Groups groups = {};
  groups.count = count;
  if (count > kMaxGroups || m < 1 || m > 64 || k % (kStepK * 4) != 0) return cudaErrorInvalidValue;
  for (int i = 0; i < count; ++i) {
    if (rows[i] % kTileRows != 0) return cudaErrorInvalidValue;
    groups.group[i] = {static_cast<const half*>(x[i]), static_cast<const half*>(w[i]), y[i], rows[i], groups.tiles,
                       y_stride[i], activation[i]};
    groups.tiles += rows[i] / kTileRows;
  }
  if (m <= 8) return by_depth<1>(groups, m, k, float_out, blocks, stream);
  if (m <= 16) return by_depth<2>(groups, m, k, float_out, blocks, stream);
  if (m <= 32) return by_depth<4>(groups, m, k, float_out, blocks, stream);
  return by_depth<8>(groups, m, k, float_out, blocks, stream);
}
