// Residual add + LayerNorm + token shift + mixes, over packed rows.
//
//   x       = x_in + delta                      (delta optional: the output of the block before)
//   u[t]    = LayerNorm(x[t])
//   d[t]    = u[t-1] - u[t], where u[-1] is what the row's slot kept
//   out_n   = u + d * mix_n,  n < mixes
//
// A block takes a strip of tokens. The u before its first one it computes again from x_in and delta: that
// costs a second read, mostly from L2, and saves a pass over memory and a grid-wide barrier. x_out must
// therefore not be x_in.
#include "common.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStrip = 4;         // tokens per block when there are many
constexpr int kStripFrom = 1024;  // one token per block up to here: fewer would leave multiprocessors idle

template <int Vectors>
struct Row {
  float value[Vectors][8];
};

DEVICE float block_sum(float x) {
  __shared__ float partial[kWarps];
  x = lane_sum<32>(x);
  __syncthreads();  // the previous use of `partial` is over
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp];
  return sum;
}

// x_in[t] (+ delta[t]), and its LayerNorm in `u`.
template <int Vectors, typename Delta>
DEVICE void normalised(const half* x_in, const Delta* delta, int64_t t, int width, const half* weight, const half* bias,
                       Row<Vectors>& x, Row<Vectors>& u) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int c = (i * kThreads + threadIdx.x) * 8;
    if (c < width) {
      to_floats(load8(x_in + t * width + c), x.value[i]);
      if (delta != nullptr) {
        float d[8];
        if constexpr (sizeof(Delta) == 2) {
          to_floats(load8(delta + t * width + c), d);
        } else {
          *reinterpret_cast<float4*>(d) = *reinterpret_cast<const float4*>(delta + t * width + c);
          *reinterpret_cast<float4*>(d + 4) = *reinterpret_cast<const float4*>(delta + t * width + c + 4);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) x.value[i][j] += d[j];
        // What is kept is rounded: normalise that, so that a token gives the same u whoever computes it.
#pragma unroll
        for (int j = 0; j < 8; ++j) x.value[i][j] = __half2float(__float2half_rn(x.value[i][j]));
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x.value[i][j];
    }
  }
  const float mean = block_sum(sum) / width;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    if ((i * kThreads + threadIdx.x) * 8 < width) {
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += (x.value[i][j] - mean) * (x.value[i][j] - mean);
    }
  }
  const float scale = rsqrtf(block_sum(squares) / width + 1e-5f);
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const int c = (i * kThreads + threadIdx.x) * 8;
    if (c < width) {
      float w[8], b[8];
      to_floats(load8(weight + c), w);
      to_floats(load8(bias + c), b);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float value = (x.value[i][j] - mean) * scale * w[j] + b[j];
        u.value[i][j] = __half2float(__float2half_rn(value));
      }
    }
  }
}

template <int Vectors, int Mixes, typename Delta>
__global__ void __launch_bounds__(kThreads) mix_kernel(const half* x_in, const Delta* delta, half* x_out,
                                                       const half* weight, const half* bias, const half* mix,
                                                       const half* before, const int* before_index, half* kept,
                                                       const int* slots, const int* row_of, const int* row_start,
                                                       half* out, float* zeroed, int tokens, int width, int strip) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * strip;
  const int64_t end = min(begin + strip, static_cast<int64_t>(tokens));
  Row<Vectors> x, u, previous;
  for (int64_t t = begin; t < end; ++t) {
    const int row = row_of[t];
    if (t == row_start[row]) {
      const half* kept_before = before + static_cast<int64_t>(before_index[row]) * width;
#pragma unroll
      for (int i = 0; i < Vectors; ++i) {
        const int c = (i * kThreads + threadIdx.x) * 8;
        if (c < width) to_floats(load8(kept_before + c), previous.value[i]);
      }
    } else if (t == begin) {
      normalised<Vectors>(x_in, delta, t - 1, width, weight, bias, x, previous);
    } else {
      previous = u;
    }
    normalised<Vectors>(x_in, delta, t, width, weight, bias, x, u);
    const bool last = t + 1 == row_start[row + 1];
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const int c = (i * kThreads + threadIdx.x) * 8;
      if (c >= width) continue;
      if (delta != nullptr) store8(x_out + t * width + c, to_half8(x.value[i]));
      if (last) store8(kept + static_cast<int64_t>(slots[row]) * width + c, to_half8(u.value[i]));
      if (zeroed != nullptr) {
        *reinterpret_cast<float4*>(zeroed + t * width + c) = make_float4(0.f, 0.f, 0.f, 0.f);
        *reinterpret_cast<float4*>(zeroed + t * width + c + 4) = make_float4(0.f, 0.f, 0.f, 0.f);
      }
#pragma unroll
      for (int n = 0; n < Mixes; ++n) {
        float m[8], mixed[8];
        to_floats(load8(mix + n * width + c), m);
#pragma unroll
        for (int j = 0; j < 8; ++j) mixed[j] = u.value[i][j] + (previous.value[i][j] - u.value[i][j]) * m[j];
        store8(out + (static_cast<int64_t>(n) * tokens + t) * width + c, to_half8(mixed));
      }
    }
  }
}

template <int Mixes, typename Delta>
cudaError_t mix(const half* x_in, const Delta* delta, half* x_out, const half* weight, const half* bias,
                const half* mixes, const half* before, const int* before_index, half* kept, const int* slots,
                const int* row_of, const int* row_start, half* out, float* zeroed, int tokens, int width, void* stream) {
  const int strip = tokens > kStripFrom ? kStrip : 1;
  auto run = [&](auto kernel) {
    return launch(kernel, dim3((tokens + strip - 1) / strip), dim3(kThreads), 0, stream, x_in, delta, x_out, weight,
                  bias, mixes, before, before_index, kept, slots, row_of, row_start, out, zeroed, tokens, width, strip);
  };
  if (width <= kThreads * 8) return run(mix_kernel<1, Mixes, Delta>);
  if (width <= kThreads * 16) return run(mix_kernel<2, Mixes, Delta>);
  return run(mix_kernel<4, Mixes, Delta>);
}

}  // namespace

// out: [mixes, tokens, width] fp16, mixes is 6 (time mix: r, w, k, v, a, g) or 1 (channel mix).
// delta: [tokens, width] fp16 or, with delta_is_float, fp32; may be null. zeroed: fp32 [tokens, width] to clear, or null.
// before[before_index[row]] is u of the row's last token so far; kept[slots[row]] receives its newest one.
extern "C" int rwkv_mix(int mixes, int delta_is_float, const void* x_in, const void* delta, void* x_out,
                        const void* weight, const void* bias, const void* mix_weights, const void* before,
                        const int* before_index, void* kept, const int* slots, const int* row_of, const int* row_start,
                        void* out, float* zeroed, int tokens, int width, void* stream) {
  auto run = [&](auto delta_pointer) {
    auto with = [&](auto function) {
      return function(static_cast<const half*>(x_in), delta_pointer, static_cast<half*>(x_out),
                      static_cast<const half*>(weight), static_cast<const half*>(bias),
                      static_cast<const half*>(mix_weights), static_cast<const half*>(before), before_index,
                      static_cast<half*>(kept), slots, row_of, row_start, static_cast<half*>(out), zeroed, tokens,
                      width, stream);
    };
    using Delta = std::remove_const_t<std::remove_pointer_t<decltype(delta_pointer)>>;
    return mixes == 6 ? with(mix<6, Delta>) : with(mix<1, Delta>);
  };
  return delta_is_float ? run(static_cast<const float*>(delta)) : run(static_cast<const half*>(delta));
}
