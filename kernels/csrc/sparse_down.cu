// The channel mix's down projection for very few rows: y = h V, where most of h = relu(.)^2 is zero.
//
// V is kept as [4C, C], a row per neuron, so that an idle neuron's weights need not be read. A block
// takes a range of neurons and a strip of columns; it lists the neurons that any of its rows of h
// needs, reads their weights, and adds its sums to y.
#include "common.cuh"

namespace {

constexpr int kLanes = 128;             // eight columns each
constexpr int kParties = 4;             // they share the list of neurons
constexpr int kThreads = kLanes * kParties;
constexpr int kStrip = kLanes * 8;      // columns of a block
constexpr int kMaxRange = kThreads;     // neurons of a block: each thread looks at one
constexpr int kMinRange = 64;

template <int Rows>
struct Shape {
  static constexpr int kAhead = Rows <= 2 ? 16 : 8;                             // weights in flight per thread
  static constexpr int kPadded = Rows == 3 ? 4 : Rows > 4 ? 8 : Rows;           // a neuron's activity, in whole vectors
};

template <int Rows>
__global__ void __launch_bounds__(kThreads) sparse_down_kernel(const half* h, const half* v, float* y, int neurons,
                                                               int width, int range) {
  __shared__ int listed[kMaxRange];
  __shared__ __align__(16) float activity[kMaxRange][Shape<Rows>::kPadded];
  __shared__ int count;
  __shared__ __align__(16) float sums[kParties][kStrip];

  const int neuron = blockIdx.y * range + threadIdx.x;
  const int party = threadIdx.x / kLanes, warp_lane = threadIdx.x % 32;
  const int in_strip = (threadIdx.x % kLanes) * 8, column = blockIdx.x * kStrip + in_strip;
  if (threadIdx.x == 0) count = 0;
  let_next_kernel_start();
  __syncthreads();
  wait_for_previous_kernel();

  float mine[Rows];
  bool active = false;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const bool looks = threadIdx.x < range && neuron < neurons;
    mine[r] = looks ? __half2float(h[static_cast<int64_t>(r) * neurons + neuron]) : 0.f;
    active = active || mine[r] != 0.f;
  }
  const unsigned voters = __ballot_sync(0xffffffffu, active);
  int place = 0;
  if (warp_lane == 0 && voters) place = atomicAdd(&count, __popc(voters));
  place = __shfl_sync(0xffffffffu, place, 0) + __popc(voters & ((1u << warp_lane) - 1));
  if (active) {
    listed[place] = neuron;
#pragma unroll
    for (int r = 0; r < Rows; ++r) activity[place][r] = mine[r];
  }
  __syncthreads();
  const int active_neurons = count;

  constexpr int kAhead = Shape<Rows>::kAhead;
  float sum[Rows][8] = {};
  if (column < width) {
    uint4 ring[kAhead];
    const auto fetch = [&](int slot, int n) {
      if (n < active_neurons) ring[slot] = load_weights(v + static_cast<int64_t>(listed[n]) * width + column);
    };
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) fetch(slot, party + slot * kParties);
    for (int i = party; i < active_neurons; i += kParties * kAhead) {
#pragma unroll
      for (int slot = 0; slot < kAhead; ++slot) {
        const int n = i + slot * kParties;
        if (n >= active_neurons) break;
        float w[8];
        to_floats(*reinterpret_cast<const Half8*>(&ring[slot]), w);
        fetch(slot, n + kParties * kAhead);
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          const float factor = activity[n][r];
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[r][j] += factor * w[j];
        }
      }
    }
  }
  // The parties' sums are added by all, neighbouring threads taking neighbouring columns of y.
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (r > 0) __syncthreads();
    *reinterpret_cast<float4*>(&sums[party][in_strip]) = *reinterpret_cast<const float4*>(sum[r]);
    *reinterpret_cast<float4*>(&sums[party][in_strip + 4]) = *reinterpret_cast<const float4*>(sum[r] + 4);
    __syncthreads();
#pragma unroll
    for (int c = threadIdx.x; c < kStrip; c += kThreads) {
      float total = 0.f;
#pragma unroll
      for (int other = 0; other < kParties; ++other) total += sums[other][c];
      const int to = blockIdx.x * kStrip + c;
      if (to < width) atomicAdd(y + static_cast<int64_t>(r) * width + to, total);
    }
  }
}

template <int Rows>
cudaError_t run(const half* h, const half* v, float* y, int neurons, int width, void* stream) {
  static const int multiprocessors = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  const int strips = (width + kStrip - 1) / kStrip;
  int range = kMinRange;  // as few neurons a block as one block a multiprocessor allows
  while (range < kMaxRange && strips * ((neurons + range - 1) / range) > multiprocessors) range *= 2;
  return launch(sparse_down_kernel<Rows>, dim3(strips, (neurons + range - 1) / range), dim3(kThreads), 0, stream, h, v, y,
                neurons, width, range);
}

}  // namespace

// y[rows, width] fp32 += h[rows, neurons] v[neurons, width], fp16; y must be cleared before. rows: 1 to 8.
extern "C" int rwkv_sparse_down(const void* h, const void* v, float* y, int rows, int neurons, int width,
                                void* stream) {
  const auto with = [&](auto function) {
    return function(static_cast<const half*>(h), static_cast<const half*>(v), y, neurons, width, stream);
  };
  switch (rows) {
    case 1: return with(run<1>);
    case 2: return with(run<2>);
    case 3: return with(run<3>);
    case 4: return with(run<4>);
    case 5: return with(run<5>);
    case 6: return with(run<6>);
    case 7: return with(run<7>);
    case 8: return with(run<8>);
    default: return cudaErrorInvalidValue;
  }
}
