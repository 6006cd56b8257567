// The channel mix's down projection for very few rows: y = h V, where most of h = relu(.)^2 is zero.
//
// V is kept as [4C, C], a row per neuron, so that an idle neuron's weights need not be read. A block
// takes a range of neurons and a strip of columns; it lists the neurons that any of its rows of h
// needs, reads their weights, and adds its sums to y.
#include "common.cuh"

namespace {

constexpr int kLanes = 128;                       // eight columns each
constexpr int kParties = 4;                       // they share the list of neurons
constexpr int kThreads = kLanes * kParties;
constexpr int kStrip = kLanes * 8;                // columns of a block
constexpr int kRange = 512;                       // neurons of a block
constexpr int kAhead = 4;                         // weights in flight per thread
static_assert(kRange == kThreads, "each thread looks at one neuron");

template <int Rows>
__global__ void __launch_bounds__(kThreads) sparse_down_kernel(const half* h, const half* v, float* y, int neurons,
                                                               int width) {
  __shared__ int listed[kRange];
  __shared__ float activity[Rows][kRange];
  __shared__ int count;
  __shared__ __align__(16) float sums[Rows][kStrip];

  const int neuron = blockIdx.y * kRange + threadIdx.x;
  const int party = threadIdx.x / kLanes;
  const int column = blockIdx.x * kStrip + (threadIdx.x % kLanes) * 8;
  if (threadIdx.x == 0) count = 0;
  let_next_kernel_start();
  __syncthreads();
  wait_for_previous_kernel();

  float mine[Rows];
  bool active = false;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    mine[r] = neuron < neurons ? __half2float(h[static_cast<int64_t>(r) * neurons + neuron]) : 0.f;
    active = active || mine[r] != 0.f;
  }
  const unsigned voters = __ballot_sync(0xffffffffu, active);
  int place = 0;
  if (threadIdx.x % 32 == 0 && voters) place = atomicAdd(&count, __popc(voters));
  place = __shfl_sync(0xffffffffu, place, 0) + __popc(voters & ((1u << (threadIdx.x % 32)) - 1));
  if (active) {
    listed[place] = neuron;
#pragma unroll
    for (int r = 0; r < Rows; ++r) activity[r][place] = mine[r];
  }
  __syncthreads();
  const int active_neurons = count;

  float sum[Rows][8] = {};
  if (column < width) {
    for (int i = party; i < active_neurons; i += kParties * kAhead) {
      uint4 weights[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int n = i + a * kParties;
        if (n < active_neurons) weights[a] = load_weights(v + static_cast<int64_t>(listed[n]) * width + column);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int n = i + a * kParties;
        if (n >= active_neurons) break;
        float w[8];
        to_floats(*reinterpret_cast<const Half8*>(&weights[a]), w);
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
#pragma unroll
          for (int j = 0; j < 8; ++j) sum[r][j] += activity[r][n] * w[j];
        }
      }
    }
  }
  // One party after the other hands its sums to the first.
  const int at = (threadIdx.x % kLanes) * 8;
#pragma unroll
  for (int other = 1; other < kParties; ++other) {
    if (party == other) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[r][at + j] = sum[r][j];
      }
    }
    __syncthreads();
    if (party == 0) {
#pragma unroll
      for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[r][j] += sums[r][at + j];
      }
    }
    __syncthreads();
  }
  if (party == 0 && column < width) {
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
      for (int j = 0; j < 8; ++j) atomicAdd(y + static_cast<int64_t>(r) * width + column + j, sum[r][j]);
    }
  }
}

template <int Rows>
cudaError_t run(const half* h, const half* v, float* y, int neurons, int width, void* stream) {
  const dim3 grid((width + kStrip - 1) / kStrip, (neurons + kRange - 1) / kRange);
  return launch(sparse_down_kernel<Rows>, grid, dim3(kThreads), 0, stream, h, v, y, neurons, width);
}

}  // namespace

// y[rows, width] fp32 += h[rows, neurons] v[neurons, width], fp16; y must be cleared before. rows: 1 to 4.
extern "C" int rwkv_sparse_down(const void* h, const void* v, float* y, int rows, int neurons, int width,
                                void* stream) {
  const half* h_ = static_cast<const half*>(h);
  const half* v_ = static_cast<const half*>(v);
  if (rows == 1) return run<1>(h_, v_, y, neurons, width, stream);
  if (rows == 2) return run<2>(h_, v_, y, neurons, width, stream);
  if (rows <= 4) return rows == 3 ? run<3>(h_, v_, y, neurons, width, stream) : run<4>(h_, v_, y, neurons, width, stream);
  return cudaErrorInvalidValue;
}
