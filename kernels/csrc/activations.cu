// Elementwise passes behind products that a library computed: what skinny_gemm.cu does as it stores.
#include "common.cuh"

namespace {

constexpr int kThreads = 256;

// x = relu(x)^2, in place.
__global__ void __launch_bounds__(kThreads) relu_squared_kernel(half* x, int64_t count) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads * 8) {
    float v[8];
    to_floats(load8(x + i), v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      v[j] = fmaxf(v[j], 0.f);
      v[j] *= v[j];
    }
    store8(x + i, to_half8(v));
  }
}

// h [tokens, ranks]: tanh on columns [0, tanh_end), sigmoid on [sigmoid_begin, ranks).
__global__ void __launch_bounds__(kThreads) lora_activation_kernel(half* h, int64_t tokens, int ranks, int tanh_end,
                                                                   int sigmoid_begin) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (i >= tokens * ranks) return;
  const int column = i % ranks;
  if (column >= tanh_end && column < sigmoid_begin) return;
  float v[8];
  to_floats(load8(h + i), v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = column < tanh_end ? tanhf(v[j]) : sigmoid(v[j]);
  store8(h + i, to_half8(v));
}

// x[t] = table[tokens[t]]
__global__ void __launch_bounds__(kThreads) embed_kernel(const half* table, const int* tokens, half* x, int width) {
  const int64_t t = blockIdx.x, token = tokens[t];
  for (int c = threadIdx.x * 8; c < width; c += kThreads * 8) store8(x + t * width + c, load8(table + token * width + c));
}

}  // namespace

extern "C" int rwkv_relu_squared(void* x, int64_t count, void* stream) {
  const int64_t blocks = (count / 8 + kThreads - 1) / kThreads;
  return launch(relu_squared_kernel, dim3(static_cast<unsigned>(blocks < 132 * 16 ? blocks : 132 * 16)),
                dim3(kThreads), 0, stream, static_cast<half*>(x), count);
}

// All of ranks, tanh_end and sigmoid_begin are multiples of 8.
extern "C" int rwkv_lora_activation(void* h, int tokens, int ranks, int tanh_end, int sigmoid_begin, void* stream) {
  const int64_t blocks = (static_cast<int64_t>(tokens) * ranks / 8 + kThreads - 1) / kThreads;
  return launch(lora_activation_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream,
                static_cast<half*>(h), tokens, ranks, tanh_end, sigmoid_begin);
}

// The first kernel of a step: it is launched without leave to overlap what came before.
extern "C" int rwkv_embed(const void* table, const int* tokens, void* x, int count, int width, void* stream) {
  embed_kernel<<<count, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const half*>(table), tokens, static_cast<half*>(x), width);
  return cudaGetLastError();
}
