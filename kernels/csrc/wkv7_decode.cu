// WKV-7 for rows of one token: bound by the bandwidth at which the states are read and written.
//
// One warp handles a head of a row, so that nothing waits for a block, and goes on to the same head of
// other rows. Its states pass through a ring of tiles in shared memory: while it works on one, the copy
// engine brings the next and takes away the last. Lane 4 g + q works on rows 8 g .. 8 g + 7 of S, four at
// a time, and of each on the columns 16 ((m + g) % 4) + 4 q .. + 3 for m < 4: that order spreads every access
// to shared memory over all banks. Chips before sm_90 lack the copy engine; there the lanes copy, one tile a warp.
#include "tile_ring.cuh"
#include "wkv7.cuh"

namespace {

constexpr int kMaxWarps = 8;
constexpr int kMaxTiles = 3;  // of a warp: one worked on, one coming, one leaving
constexpr int kRows = 4;      // of S per lane at a time
constexpr int kBlocks = 4;    // of four columns per lane

enum Vector { kKk, kDecay, kK, kKka, kR, kV, kVectors };

template <typename State>
struct Layout {
  static constexpr int kTileBytes = kHead * kHead * sizeof(State);
  static constexpr int kVectorBytes = kVectors * kHead * sizeof(float);
  static size_t shared_bytes(int warps, int tiles) {
    return static_cast<size_t>(warps) * (tiles * kTileBytes + kVectorBytes);
  }
};

DEVICE float4 load4(const half* p) {
  const uint2 raw = *reinterpret_cast<const uint2*>(p);
  const float2 low = __half22float2(*reinterpret_cast<const half2*>(&raw.x));
  const float2 high = __half22float2(*reinterpret_cast<const half2*>(&raw.y));
  return make_float4(low.x, low.y, high.x, high.y);
}
DEVICE float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
DEVICE void store4(half* p, const float* s) {
  half2 pair[2] = {__floats2half2_rn(s[0], s[1]), __floats2half2_rn(s[2], s[3])};
  *reinterpret_cast<uint2*>(p) = *reinterpret_cast<const uint2*>(pair);
}
DEVICE void store4(float* p, const float* s) { *reinterpret_cast<float4*>(p) = make_float4(s[0], s[1], s[2], s[3]); }

// y holds a lane's part of four rows; four lanes share them. Lane q of them gets the sum of row q.
DEVICE float scattered_sum(const float (&y)[kRows], int quarter) {
  const bool upper = quarter & 2, odd = quarter & 1;
  const float low = (upper ? y[2] : y[0]) + __shfl_xor_sync(0xffffffffu, upper ? y[0] : y[2], 2);
  const float high = (upper ? y[3] : y[1]) + __shfl_xor_sync(0xffffffffu, upper ? y[1] : y[3], 2);
  return (odd ? high : low) + __shfl_xor_sync(0xffffffffu, odd ? low : high, 1);
}

constexpr int kHoldRows = 128;  // with fewer, the products around this kernel need L2 more

template <typename State>
__global__ void __launch_bounds__(kMaxWarps * 32, 1)
    wkv7_decode_kernel(const __grid_constant__ Wkv7 p, int tiles) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint64_t arrived[kMaxWarps][kMaxTiles];

  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, quarter = lane % 4, rows = singles_of(p);
  const int heads = p.width / kHead, stride = warps * gridDim.x / heads;  // rows worked on at a time
  const int worker = warp * gridDim.x + blockIdx.x, head = worker % heads, first_row = worker / heads;
  const int items = first_row < stride && first_row < rows ? (rows - 1 - first_row) / stride + 1 : 0;

  let_next_kernel_start();
  if (items == 0) {
    wait_for_previous_kernel();  // or else, with no rows at all, the next kernel would wait for nothing
    return;
  }
  const auto state_of = [&](int item) {
    return static_cast<State*>(p.state) +
           (static_cast<int64_t>(p.slots[first_row + item * stride]) * heads + head) * kHead * kHead;
  };
  Ring ring = {shared + warp * tiles * Layout<State>::kTileBytes, arrived[warp], tiles, Layout<State>::kTileBytes,
               rows >= kHoldRows};
  float(*vectors)[kHead] = reinterpret_cast<float(*)[kHead]>(shared + warps * tiles * Layout<State>::kTileBytes +
                                                             warp * Layout<State>::kVectorBytes);
  // The slots were fixed before the step's first kernel, and this layer's states are the last step's work.
  ring.open(lane);
  for (int item = 0; item < min(tiles, items); ++item) ring.fetch(item, state_of(item), lane);
  const int column = head * kHead + lane * 2;
  const HeadParameters parameters = load_parameters(p, column);
  const half2 ln_weight = load2(p.ln_weight + column), ln_bias = load2(p.ln_bias + column);
  int offset[kBlocks];
#pragma unroll
  for (int m = 0; m < kBlocks; ++m) offset[m] = 16 * ((m + group) % 4) + 4 * quarter;
  wait_for_previous_kernel();

  RawVectors coming = load_raw(p, first_row, column);
  for (int item = 0; item < items; ++item) {
    const int row = first_row + item * stride;
    State* const state = state_of(item);
    const int ahead = item - 1 + tiles;
    const State* const state_ahead = item > 0 && ahead < items ? state_of(ahead) : nullptr;
    const RawVectors raw = coming;
    if (item + 1 < items) coming = load_raw(p, row + stride, column);

    const HeadVectors x = derive(raw, parameters);
    const auto put = [&](Vector which, float2 value) { *reinterpret_cast<float2*>(vectors[which] + lane * 2) = value; };
    put(kKk, x.kk);
    put(kDecay, power_of_two(x.log2_decay));
    put(kK, x.k);
    put(kKka, x.kka);
    put(kR, x.r);
    put(kV, x.v);
    const float bonus = lane_sum<32>(x.bonus);
    const float scale = -1.f / fmaxf(lane_sum<32>(x.squares), 1e-24f);  // of both kk and kk a
    if (state_ahead != nullptr) {
      if (lane == 0) ring.wait_until_sent();
      ring.fetch(ahead, state_ahead, lane);
    }
    __syncwarp();
    ring.wait(item, state, lane);

    float2 sums;  // y of channels 2 lane, + 1
#pragma unroll 1
    for (int odd = 0; odd < 2; ++odd) {  // rows 8 group + 2 i + odd
      State* const tile = reinterpret_cast<State*>(ring.tile(item)) + (group * 8 + odd) * kHead;
      float s[kRows][kBlocks][4], f[kBlocks][4], removed[kRows] = {}, y[kRows] = {}, value[kRows];
      // change(i, s, x) for every element of S with the vector's element of its column.
      const auto update = [&](Vector which, auto change) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          *reinterpret_cast<float4*>(f[m]) = *reinterpret_cast<const float4*>(vectors[which] + offset[m]);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
            for (int j = 0; j < 4; ++j) change(i, s[i][m][j], f[m][j]);
          }
        }
      };
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        value[i] = vectors[kV][group * 8 + odd + 2 * i];
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          *reinterpret_cast<float4*>(s[i][m]) = load4(tile + 2 * i * kHead + offset[m]);
        }
      }
      update(kKk, [&](int i, float& element, float kk) { removed[i] += element * kk; });
#pragma unroll
      for (int i = 0; i < kRows; ++i) removed[i] = lane_sum<4>(removed[i]) * scale;
      update(kDecay, [&](int, float& element, float decay) { element *= decay; });
      update(kK, [&](int i, float& element, float k) { element += value[i] * k; });
      update(kKka, [&](int i, float& element, float kka) { element += removed[i] * kka; });
      update(kR, [&](int i, float& element, float r) { y[i] += element * r; });
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) store4(tile + 2 * i * kHead + offset[m], s[i][m]);
      }
      const float sum = scattered_sum(y, quarter);
      if (odd) {
        sums.y = sum;
      } else {
        sums.x = sum;
      }
    }
    ring.send(item, state, lane);

    const float mean = lane_sum<32>(sums.x + sums.y) / kHead;
    const float2 off = sums - make_float2(mean, mean);
    const float norm = rsqrtf(lane_sum<32>(off.x * off.x + off.y * off.y) / kHead + kGroupNormEps);
    const float2 normed = off * norm * __half22float2(ln_weight) + __half22float2(ln_bias);
    const float2 out = (normed + x.v * bonus) * __half22float2(raw.g);
    *reinterpret_cast<half2*>(p.out + static_cast<int64_t>(row) * p.width + column) = __floats2half2_rn(out.x, out.y);
  }
  if (lane == 0) ring.wait_until_sent();
}

struct Device {
  int multiprocessors, shared_bytes, max_tiles;
};

Device device_limits() {
  int device = 0, major = 0;
  Device limits = {};
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&limits.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  limits.shared_bytes -= 1024;  // what the kernel declares statically, and some
  limits.max_tiles = major >= 9 ? kMaxTiles : 1;
  return limits;
}

int divided_up(int a, int b) { return (a + b - 1) / b; }

template <typename State>
cudaError_t run(const Wkv7& p, void* stream) {
  static const Device limits = device_limits();
  static const cudaError_t allowed =
      cudaFuncSetAttribute(wkv7_decode_kernel<State>, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  const int heads = p.width / kHead, rows = p.singles;
  const int most_warps = limits.shared_bytes / static_cast<int>(Layout<State>::shared_bytes(1, limits.max_tiles));
  const int warps = min(min(divided_up(rows * heads, limits.multiprocessors), most_warps), kMaxWarps);
  const int blocks = max(limits.multiprocessors, divided_up(heads, warps));
  const int tiles = min(divided_up(rows, warps * blocks / heads), limits.max_tiles);
  return launch(wkv7_decode_kernel<State>, dim3(blocks), dim3(warps * 32), Layout<State>::shared_bytes(warps, tiles),
                stream, p, tiles);
}

}  // namespace

cudaError_t wkv7_decode(const Wkv7& p, int float_state, void* stream) {
  return float_state ? run<float>(p, stream) : run<half>(p, stream);
}
