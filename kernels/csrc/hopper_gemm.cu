// y = act(x W^T) for few rows of x on Hopper, bound by the bandwidth at which W is read.
//
// In a block one warp keeps a deep ring of stages full, through the copy engine; one or two warpgroups multiply them, W on
// the left. Blocks that share a tile leave their sums in memory, where they are added up in one order, whoever comes last.
//
// Weights are constants: a block starts to fetch them as soon as its multiprocessor is free, while kernels before
// this one still compute x. The ring takes so much shared memory that two blocks of one launch never meet on a
// multiprocessor, and with few rows leaves enough for a small kernel's blocks beside it.
#include <algorithm>

#include "fragments.cuh"
#include "hopper_work.cuh"

namespace {

constexpr int kFewColumns = 2;  // up to which one block adds up a tile's sums faster than all that share it

// What blocks that share a tile tell each other: their sums, as they lie in registers, and for each tile how many have
// left theirs. Launches at the same time on two streams would collide here.
[[maybe_unused]] __device__ float4 shared_sums[kMaxBlocks][kMaxFragments * kMaxColumns][32];
[[maybe_unused]] __device__ unsigned arrived[kMaxBlocks][kMaxFragments], finished[kMaxBlocks];

// A fragment's outputs for eight rows of x, from where wgmma leaves them: lane l has, for rows 2 (l % 4) and the next of
// x, rows l / 4 and l / 4 + 8 of the fragment.
DEVICE void store(const Work& work, const Tile& tile, int fragment, int column, const float (&sum)[4]) {
  if (fragment >= tile.fragments) return;
  const Group& group = work.group[tile.group];
  const int lane = threadIdx.x % 32, row = tile.row + fragment * kFragment;
  float y[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) y[e] = activated(sum[e], group.activation);
  if (work.float_out) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int of_x = column * 8 + lane % 4 * 2 + e % 2;
      if (of_x >= work.m) continue;
      static_cast<float*>(group.y)[static_cast<int64_t>(of_x) * group.y_stride + row + lane / 4 + e / 2 * 8] = y[e];
    }
    return;
  }
  // Transposed, a lane has one row of x; thanks to the order of the rows of W, four successive outputs.
  const uint2 four = make_uint2(transposed(packed(y[0], y[1])), transposed(packed(y[2], y[3])));
  const int of_x = column * 8 + lane / 4;
  if (of_x >= work.m) return;
  half* to = static_cast<half*>(group.y) + static_cast<int64_t>(of_x) * group.y_stride + row + lane % 4 * 4;
  *reinterpret_cast<uint2*>(to) = four;
}

// Fetches one fragment's sums of every block that shares the tile and adds them to `sum`.
template <int Columns>
DEVICE void add_shared(int tile, int parts, int at, float (&sum)[Columns][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll(Columns <= 2 ? 4 : 1)
  for (int part = 0; part < parts; ++part) {
    const float4(*theirs)[32] = shared_sums[tile * parts + part] + at;
#pragma unroll
    for (int j = 0; j < Columns; ++j) {
      const float4 v = __ldcg(&theirs[j][lane]);  // not from L1, which does not see other blocks' stores
      sum[j][0] += v.x, sum[j][1] += v.y, sum[j][2] += v.z, sum[j][3] += v.w;
    }
  }
}

// The warp whose arrival completes a fragment adds it up: true, with the whole sum, for that one.
template <int Columns>
DEVICE bool add_up_if_last(int tile, int parts, int warp, float (&sum)[Columns][4]) {
  const int lane = threadIdx.x % 32;
  unsigned before = 0;
  __threadfence();
  __syncwarp();
  if (lane == 0) before = atomicAdd(&arrived[tile][warp], 1);
  before = __shfl_sync(0xffffffffu, before, 0);
  if (before + 1 != parts) return false;
  if (lane == 0) arrived[tile][warp] = 0;  // as it was found
  __threadfence();
#pragma unroll
  for (int j = 0; j < Columns; ++j) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.f;
  add_shared(tile, parts, warp * Columns, sum);
  return true;
}

// All blocks wait for each other, and each adds up and stores its part of the tile. They do run at the same time:
// there are no more of them than multiprocessors, and what runs before them never waits for them.
template <int Columns>
DEVICE void add_up_together(const Work& work, const Tile& tile, int index, int warp, int warps) {
  const int lane = threadIdx.x % 32, parts = work.cut.parts, me = blockIdx.x % parts;
  unsigned* count = &arrived[index][0];
  __syncwarp();
  if (lane == 0) {
    add_release(count, 1);
    while (load_acquire(count) < parts * warps) {
    }
  }
  __syncwarp();
  const int all = tile.fragments * Columns;
  for (int at = all * me / parts + warp; at < all * (me + 1) / parts; at += warps) {
    float sum[1][4] = {};
    add_shared(index, parts, at, sum);
    store(work, tile, at / Columns, tile.chunk * Columns + at % Columns, sum[0]);
  }
  asm volatile("bar.sync 1, %0;" ::"r"(warps * 32) : "memory");
  // The last block to finish leaves the count as it found it. atomicInc starts again at zero by itself.
  if (threadIdx.x == 0 && atomicInc(&finished[index], parts - 1) == parts - 1) *count = 0;
}

// Columns: rows of x at a time, in eights.
template <int Columns>
struct Stages {
  static constexpr int kSize = 168 * 1024;
  static constexpr int kMostStages = 32;
  static constexpr int kBytes = 1024 + kSize + kMostStages * 16;  // 1024: to align them; 16: a barrier for full and empty

  int weights, bytes, count;
  uint32_t ring, full, empty;

  DEVICE Stages(int fragments, const void* shared)
      : weights(fragments * kFragmentBytes),
        bytes(weights + Columns * kColumnBytes),
        ring((shared_address(shared) + 1023) & ~1023u),
        full(ring + kSize),
        empty(full + kMostStages * 8) {
    const int read = divided_up(fragments, 4) * 4 * kFragmentBytes;  // by whole warpgroups, if need be past the stage
    count = min((kSize - max(bytes, read)) / bytes + 1, kMostStages);
  }
  DEVICE void open(int readers) const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, readers);
    }
    fence_barrier_init();
  }
};

// One thread: everything that the block multiplies, through the ring.
template <int Columns>
DEVICE void fetch(const Work& work, const Stages<Columns>& s) {
  auto load_weights = [&](const Walk& at, int slot) {
    const uint32_t barrier = s.full + slot * 8;
    arrive_and_expect(barrier, s.bytes);
    copy_fragments(s.ring + slot * s.bytes, work.w[at.tile.group], at.k * kStepK, at.tile.row / kFragment, barrier,
                   kEvictFirst);
  };
  auto load_inputs = [&](const Walk& at, int slot) {
    copy_box(s.ring + slot * s.bytes + s.weights, work.x[at.tile.group], at.k * kStepK, at.tile.chunk * Columns * 8,
             s.full + slot * 8, kEvictLast);
  };
  const Share share(work);
  Walk weights(work, share), inputs = weights;
  int slot = 0, phase = 0;
  for (; slot < s.count && !weights.done(); ++slot, weights.next()) load_weights(weights, slot);
  wait_for_previous_kernel();
  for (int i = 0; i < slot; ++i, inputs.next()) load_inputs(inputs, i);
  for (slot = 0; !weights.done(); weights.next()) {
    wait_for_phase(s.empty + slot * 8, phase);
    load_weights(weights, slot);
    load_inputs(weights, slot);
    if (++slot == s.count) slot = 0, phase ^= 1;
  }
}

// A warp of those that multiply: its fragment of every tile.
template <int Columns>
DEVICE void multiply_and_store(const Work& work, const Stages<Columns>& s, int warp, int warps) {
  const int lane = threadIdx.x % 32;
  const Share share(work);
  wait_for_previous_kernel();
  int slot = 0, phase = 0;
  for (int index = share.first; index < share.end; ++index) {
    const Tile tile = tile_at(work, index);
    float sum[Columns][4] = {};
    int last = -1;  // slot, whose products may be under way
    for (int step = tile.begin; step < tile.end; ++step) {
      wait_for_phase(s.full + slot * 8, phase);
      const uint32_t stage = s.ring + slot * s.bytes;
      const uint64_t a = descriptor(stage + warp / 4 * (4 * kFragmentBytes)), b = descriptor(stage + s.weights);
      products_begin();
#pragma unroll
      for (int k = 0; k < kStepK / 16; ++k) multiply<Columns>(sum, a + k * kDescriptorK16, b + k * kDescriptorK16);
      products_end();
      wait_for_products<1>();
      if (lane == 0 && last >= 0) arrive(s.empty + last * 8);
      last = slot;
      if (++slot == s.count) slot = 0, phase ^= 1;
    }
    wait_for_products<0>();
    if (lane == 0) arrive(s.empty + last * 8);
    if (work.cut.parts > 1) {
      float4(*mine)[32] = shared_sums[blockIdx.x] + warp * Columns;
#pragma unroll
      for (int j = 0; j < Columns; ++j) mine[j][lane] = make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
      if (Columns > kFewColumns) {
        add_up_together<Columns>(work, tile, index, warp, warps);
        continue;
      }
      if (!add_up_if_last(index, work.cut.parts, warp, sum)) continue;
    }
#pragma unroll
    for (int j = 0; j < Columns; ++j) store(work, tile, warp, tile.chunk * Columns + j, sum[j]);
  }
}

template <int Columns>
__global__ void __launch_bounds__((kMaxFragments + 1) * 32, 1) hopper_gemm_kernel(const __grid_constant__ Work work) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  const Stages<Columns> stages(work.cut.fragments, shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), warps = blockDim.x / 32 - 1;
  if (threadIdx.x == 0) stages.open(warps);
  __syncthreads();
  let_next_kernel_start();
  if (warp < warps) {
    multiply_and_store(work, stages, warp, warps);
  } else if (threadIdx.x % 32 == 0) {
    fetch(work, stages);
  }
#else
  __trap();  // built for another chip
#endif
}

template <int Columns>
cudaError_t run(const Work& work, void* stream) {
  constexpr int kBytes = Stages<Columns>::kBytes;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(hopper_gemm_kernel<Columns>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return allowed;
  const int blocks = divided_up(work.tiles * work.chunks, work.cut.rounds) * work.cut.parts;
  const int warps = divided_up(work.cut.fragments, 4) * 4;  // whole warpgroups
  return launch(hopper_gemm_kernel<Columns>, dim3(blocks), dim3((warps + 1) * 32), kBytes, stream, work);
}

}  // namespace

// As rwkv_skinny_gemm, for any m; each product has its own k, and its x rows so far apart. All is at multiples of 16
// bytes, y of 8. Compute capability 9.0 only.
extern "C" int rwkv_hopper_gemm(int count, const void* const* x, const void* const* w, void* const* y, const int* rows,
                                const int* k, const int* x_stride, const int* y_stride, const int* activation, int m,
                                int float_out, int multiprocessors, void* stream) {
  if (count < 1 || count > kMaxGroups || m < 1) return cudaErrorInvalidValue;
  Work work = {};
  work.count = count;
  work.m = m;
  work.float_out = float_out != 0;
  const auto depth = std::minmax_element(k, k + count);
  work.cut = choose_cut(count, rows, m, divided_up(*depth.second, kStepK), divided_up(*depth.first, kStepK),
                        multiprocessors);
  work.chunks = divided_up(m, work.cut.columns * 8);
  for (int i = 0; i < count; ++i) {
    if (rows[i] % (2 * kFragment) != 0 || k[i] < 1) return cudaErrorInvalidValue;
    if (!describe_fragments(&work.w[i], w[i], rows[i], k[i], work.cut.fragments, !work.float_out) ||
        !describe_matrix(&work.x[i], x[i], m, k[i], x_stride[i], work.cut.columns * 8)) {
      return cudaErrorInvalidValue;
    }
    work.group[i] = {y[i], rows[i], work.tiles, divided_up(k[i], kStepK), y_stride[i], activation[i]};
    work.tiles += divided_up(rows[i], work.cut.fragments * kFragment);
  }
  switch (work.cut.columns) {
    case 1: return run<1>(work, stream);
    case 2: return run<2>(work, stream);
    case 4: return run<4>(work, stream);
    case 8: return run<8>(work, stream);
    default: return run<kMaxColumns>(work, stream);
  }
}
