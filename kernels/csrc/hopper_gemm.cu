// y = act(x W^T) for few rows of x on Hopper, bound by the bandwidth at which W is read.
//
// In a block one warp keeps a deep ring of stages full, through the copy engine; two warpgroups multiply them, W on the
// left. Blocks that share a tile leave their sums in memory, where they are added up in one order, whoever comes last.
//
// Weights are constants: a block starts to fetch them as soon as its multiprocessor is free, while kernels before
// this one still compute x. The ring takes so much shared memory that two blocks of one launch never meet on a
// multiprocessor, and leaves enough for a small kernel's blocks beside it.
#include "hopper_work.cuh"

namespace {

constexpr int kFewColumns = 2;  // up to which one block adds up a tile's sums faster than all that share it
constexpr int kRingBytes = 168 * 1024;

// What blocks that share a tile tell each other: their sums, as they lie in registers, and how many have left theirs.
// A block shares at most its first tile and its last one. Launches at the same time on two streams would collide here.
[[maybe_unused]] __device__ float4 shared_sums[kMaxBlocks][2][kWarps * kMaxColumns][32];
// The counts go by the last block of the tile.
[[maybe_unused]] __device__ unsigned arrived[kMaxBlocks][kWarps], finished[kMaxBlocks];

// The blocks that share a tile.
struct Sharing {
  int tile_begin, first, last;

  DEVICE Sharing(const Work& work, int tile) : tile_begin(tile * work.steps) {
    first = block_of(work, tile_begin);
    last = block_of(work, tile_begin + work.steps - 1);
  }
  DEVICE int blocks() const { return last - first + 1; }
  DEVICE float4 (*sums_of(const Work& work, int block) const)[32] {
    return shared_sums[block][first_step(work, block) >= tile_begin ? 0 : 1];
  }
};

// One thread's part of a fragment, for eight rows of x: two rows of W, eight apart, by two rows of x.
DEVICE void store(const Work& work, const Tile& tile, int fragment, int column, const float (&sum)[4]) {
  if (fragment >= tile.boxes * (kBoxRows / 16)) return;
  const Group& group = work.group[tile.group];
  const int lane = threadIdx.x % 32, row = tile.row + fragment * 16 + lane / 4;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int of_x = column * 8 + lane % 4 * 2 + e % 2;
    if (of_x >= work.m) continue;
    const int64_t at = static_cast<int64_t>(of_x) * group.y_stride + row + e / 2 * 8;
    const float y = activated(sum[e], group.activation);
    if (work.float_out) {
      static_cast<float*>(group.y)[at] = y;
    } else {
      static_cast<half*>(group.y)[at] = __float2half_rn(y);
    }
  }
}

// Fetches one fragment's sums of every block that shares the tile and adds them to `sum`.
template <int Columns>
DEVICE void add_shared(const Work& work, const Sharing& sharing, int at, float (&sum)[Columns][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll(Columns <= 2 ? 4 : 1)
  for (int block = sharing.first; block <= sharing.last; ++block) {
    const float4(*theirs)[32] = sharing.sums_of(work, block) + at;
#pragma unroll
    for (int j = 0; j < Columns; ++j) {
      const float4 v = __ldcg(&theirs[j][lane]);  // not from L1, which does not see other blocks' stores
      sum[j][0] += v.x, sum[j][1] += v.y, sum[j][2] += v.z, sum[j][3] += v.w;
    }
  }
}

// The warp whose arrival completes a fragment adds it up: true, with the whole sum, for that one.
template <int Columns>
DEVICE bool add_up_if_last(const Work& work, const Sharing& sharing, int warp, float (&sum)[Columns][4]) {
  const int lane = threadIdx.x % 32;
  unsigned before = 0;
  __threadfence();
  __syncwarp();
  if (lane == 0) before = atomicAdd(&arrived[sharing.last][warp], 1);
  before = __shfl_sync(0xffffffffu, before, 0);
  if (before + 1 != sharing.blocks()) return false;
  if (lane == 0) arrived[sharing.last][warp] = 0;  // as it was found
  __threadfence();
#pragma unroll
  for (int j = 0; j < Columns; ++j) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.f;
  add_shared(work, sharing, warp * Columns, sum);
  return true;
}

// All blocks wait for each other, and each adds up and stores its part of the tile. They do run at the same time:
// there are no more of them than multiprocessors, and what runs before them never waits for them.
template <int Columns>
DEVICE void add_up_together(const Work& work, const Sharing& sharing, const Tile& tile, int warp) {
  const int lane = threadIdx.x % 32, blocks = sharing.blocks(), me = blockIdx.x - sharing.first;
  unsigned* count = &arrived[sharing.last][0];
  __syncwarp();
  if (lane == 0) {
    add_release(count, 1);
    while (load_acquire(count) < blocks * kWarps) {
    }
  }
  __syncwarp();
  const int all = tile.boxes * (kBoxRows / 16) * Columns;
  for (int at = all * me / blocks + warp; at < all * (me + 1) / blocks; at += kWarps) {
    float sum[1][4] = {};
    add_shared(work, sharing, at, sum);
    store(work, tile, at / Columns, tile.chunk * Columns + at % Columns, sum[0]);
  }
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
  // The last block to finish leaves the count as it found it. atomicInc starts again at zero by itself.
  if (threadIdx.x == 0 && atomicInc(&finished[sharing.last], blocks - 1) == blocks - 1) *count = 0;
}

// Columns: rows of x at a time, in eights.
template <int Columns>
struct Ring {
  static constexpr int kWeights = kTileRows * kStepK * 2;
  static constexpr int kInputs = Columns * 8 * kStepK * 2;
  static constexpr int kStage = kWeights + kInputs;
  static constexpr int kStages = kRingBytes / kStage;
  static constexpr int kBytes = 1024 + kStages * (kStage + 16);  // 1024: to align it; 16: the barriers
};

template <int Columns>
__global__ void __launch_bounds__(kThreads, 1) hopper_gemm_kernel(const __grid_constant__ Work work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using R = Ring<Columns>;
  extern __shared__ unsigned char raw[];
  const uint32_t ring = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t full = ring + R::kStages * R::kStage, empty = full + R::kStages * 8;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int begin = first_step(work, blockIdx.x), end = first_step(work, blockIdx.x + 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < R::kStages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, kWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  let_next_kernel_start();

  if (warp == kWarps) {
    if (lane != 0) return;
    auto load_weights = [&](const Walk& at, int slot) {
      const uint32_t stage = ring + slot * R::kStage, barrier = full + slot * 8;
      arrive_and_expect(barrier, at.tile.boxes * kBoxBytes + R::kInputs);
      for (int i = 0; i < at.tile.boxes; ++i) {
        copy_box(stage + i * kBoxBytes, work.w[at.tile.group], at.k * kStepK, at.tile.row + i * kBoxRows, barrier,
                 kEvictFirst);
      }
    };
    auto load_inputs = [&](const Walk& at, int slot) {
      copy_box(ring + slot * R::kStage + R::kWeights, work.x[at.tile.group], at.k * kStepK, at.tile.chunk * Columns * 8,
               full + slot * 8, kEvictLast);
    };
    Walk weights(work, begin, end), inputs = weights;
    int slot = 0, phase = 0;
    for (; slot < R::kStages && !weights.done(); ++slot, weights.next()) load_weights(weights, slot);
    wait_for_previous_kernel();
    for (int i = 0; i < slot; ++i, inputs.next()) load_inputs(inputs, i);
    for (slot = 0; !weights.done(); weights.next()) {
      wait_for_phase(empty + slot * 8, phase);
      load_weights(weights, slot);
      load_inputs(weights, slot);
      if (++slot == R::kStages) slot = 0, phase ^= 1;
    }
    return;
  }

  wait_for_previous_kernel();
  int slot = 0, phase = 0;
  for (int index = begin; index < end;) {
    const int tile_index = index / work.steps;
    const Tile tile = tile_at(work, tile_index);
    const int tile_end = min((tile_index + 1) * work.steps, end);
    const bool whole = tile_end - index == work.steps;
    float sum[Columns][4] = {};
    for (; index < tile_end; ++index) {
      wait_for_phase(full + slot * 8, phase);
      const uint32_t stage = ring + slot * R::kStage;
      const uint64_t a = descriptor(stage + warp / 4 * (64 * kStepK * 2)), b = descriptor(stage + R::kWeights);
      products_begin();
#pragma unroll
      for (int k = 0; k < kStepK / 16; ++k) multiply<Columns>(sum, a + k * kDescriptorK16, b + k * kDescriptorK16);
      products_end();
      if (lane == 0) arrive(empty + slot * 8);
      if (++slot == R::kStages) slot = 0, phase ^= 1;
    }
    if (!whole) {
      const Sharing sharing(work, tile_index);
      float4(*mine)[32] = sharing.sums_of(work, blockIdx.x) + warp * Columns;
#pragma unroll
      for (int j = 0; j < Columns; ++j) mine[j][lane] = make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
      if (work.all_add_up) {
        add_up_together<Columns>(work, sharing, tile, warp);
        continue;
      }
      if (!add_up_if_last(work, sharing, warp, sum)) continue;
    }
#pragma unroll
    for (int j = 0; j < Columns; ++j) store(work, tile, warp, tile.chunk * Columns + j, sum[j]);
  }
#else
  __trap();  // built for another chip
#endif
}

template <int Columns>
cudaError_t run(const Work& work, int multiprocessors, void* stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      hopper_gemm_kernel<Columns>, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<Columns>::kBytes);
  if (allowed != cudaSuccess) return allowed;
  Work with = work;
  const int blocks = count_blocks(work, multiprocessors);
  with.all_add_up = Columns > kFewColumns && blocks % (work.tiles * work.chunks) == 0;
  return launch(hopper_gemm_kernel<Columns>, dim3(blocks), dim3(kThreads), Ring<Columns>::kBytes, stream, with);
}

}  // namespace

// As rwkv_skinny_gemm, for any m and k a multiple of 64. Compute capability 9.0 only.
extern "C" int rwkv_hopper_gemm(int count, const void* const* x, const void* const* w, void* const* y, const int* rows,
                                const int* y_stride, const int* activation, int m, int k, int float_out,
                                int multiprocessors, void* stream) {
  if (count < 1 || count > kMaxGroups || m < 1 || k < kStepK || k % kStepK != 0) return cudaErrorInvalidValue;
  const int columns = m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : m <= 64 ? 8 : kMaxColumns;
  Work work = {};
  work.count = count;
  work.m = m;
  work.chunks = (m + columns * 8 - 1) / (columns * 8);
  work.steps = k / kStepK;
  work.float_out = float_out != 0;
  for (int i = 0; i < count; ++i) {
    if (rows[i] < kBoxRows || rows[i] % kBoxRows != 0) return cudaErrorInvalidValue;
    if (!describe_matrix(&work.w[i], w[i], rows[i], k, kBoxRows)) return cudaErrorInvalidValue;
    if (!describe_matrix(&work.x[i], x[i], m, k, columns * 8)) return cudaErrorInvalidValue;
    work.group[i] = {y[i], rows[i], work.tiles, y_stride[i], activation[i]};
    work.tiles += (rows[i] + kTileRows - 1) / kTileRows;
  }
  switch (columns) {
    case 1: return run<1>(work, multiprocessors, stream);
    case 2: return run<2>(work, multiprocessors, stream);
    case 4: return run<4>(work, multiprocessors, stream);
    case 8: return run<8>(work, multiprocessors, stream);
    default: return run<kMaxColumns>(work, multiprocessors, stream);
  }
}
