// The WKV-7 recurrence with everything around it, over packed rows.
//
// From the raw outputs of the projections it derives decay, a, kk, k and v, advances the state of each
// row over its tokens, reads it, and applies GroupNorm, the r k bonus and the gate. Formulas: the
// RWKV-7 paper (arXiv:2503.14456, section 4); per head, with S [value i, key j], all in fp32:
//
//   w = w0 + w_lora;  decay = exp(-e^-0.5 sigmoid(w));  a = sigmoid(a0 + a_lora)
//   kk = k k_k / max(|k k_k|, 1e-12);  k' = k (1 + (a - 1) k_a)
//   v' = v + (v_first - v) sigmoid(v0 + v_lora)           (layer 0: v' = v)
//   S_ij = S_ij decay_j - (sum_j S_ij kk_j) (kk_j a_j) + v'_i k'_j;   y_i = sum_j S_ij r_j
//   out = (GroupNorm(y) ln_w + ln_b + (sum_j r_j k'_j r_k_j) v') g
//
// A block owns one head of one row. A thread keeps `RowsPerThread` rows x 16 columns of S in registers;
// four neighbouring lanes share a row, so that the sums over j take two shuffles. Tokens go in blocks:
// the threads derive a block's vectors into shared memory (eight lanes a token), then step through it.
#include "wkv7.cuh"

namespace {

// The raw vectors of eight channels of one token.
struct Raw {
  Half8 r, k, v, w, a, v_gate, v_first, g;
};

// kBlock: tokens per block, at most kThreads / 8.
template <int RowsPerThread, int kBlock, typename State>
__global__ void __launch_bounds__(256 / RowsPerThread) wkv7_kernel(const __grid_constant__ Wkv7 p) {
  static_assert(kBlock <= 256 / RowsPerThread / 8, "eight lanes derive a token's vectors");
  __shared__ __align__(16) float s_r[kBlock][kHead], s_decay[kBlock][kHead], s_kk[kBlock][kHead],
      s_kka[kBlock][kHead], s_k[kBlock][kHead], s_v[kBlock][kHead], s_y[kBlock][kHead];

  const int head = blockIdx.x, row = blockIdx.y;
  const int begin = p.row_start[row], end = p.row_start[row + 1];
  const int thread = threadIdx.x, quarter = thread % 4;
  const int first_value = (thread / 4) * RowsPerThread;

  let_next_kernel_start();
  wait_for_previous_kernel();

  State* state = static_cast<State*>(p.state) +
                 (static_cast<int64_t>(p.slots[row]) * (p.width / kHead) + head) * kHead * kHead;
  float s[RowsPerThread][kColumns];
#pragma unroll
  for (int i = 0; i < RowsPerThread; ++i) {
    load_state(state + (first_value + i) * kHead + quarter * 8, s[i]);
    load_state(state + (first_value + i) * kHead + quarter * 8 + 32, s[i] + 8);
  }

  // This lane's share of deriving: eight channels of one token of the block.
  const int my_token = thread / 8, channel = (thread % 8) * 8;
  const int64_t column = head * kHead + channel;
  const int64_t plane = static_cast<int64_t>(p.tokens) * p.width;
  auto load_raw = [&](int token) {
    Raw raw;
    const int64_t at = static_cast<int64_t>(token) * p.width + column;
    raw.r = load8(p.r + at);
    raw.k = load8(p.k + at);
    raw.v = load8(p.v + at);
    raw.w = load8(p.lora + at);
    raw.a = load8(p.lora + plane + at);
    raw.g = load8(p.lora + 3 * plane + at);
    if (p.v_first != nullptr) {
      raw.v_gate = load8(p.lora + 2 * plane + at);
      raw.v_first = load8(p.v_first + at);
    }
    return raw;
  };
  Raw raw = {};
  if (my_token < kBlock && begin + my_token < end) raw = load_raw(begin + my_token);

  for (int base = begin; base < end; base += kBlock) {
    const int count = min(kBlock, end - base);
    const bool mine = my_token < count;
    float bonus = 0.f, gate[8];
    {
      float r[8], k[8], v[8], w[8], a[8], parameter[8], kk[8], decay[8];
      to_floats(raw.r, r);
      to_floats(raw.k, k);
      to_floats(raw.v, v);
      to_floats(raw.w, w);
      to_floats(raw.a, a);
      to_floats(raw.g, gate);
      to_floats(load8(p.w0 + column), parameter);
#pragma unroll
      for (int j = 0; j < 8; ++j) decay[j] = __expf(kDecayScale * sigmoid(w[j] + parameter[j]));
      to_floats(load8(p.a0 + column), parameter);
#pragma unroll
      for (int j = 0; j < 8; ++j) a[j] = sigmoid(a[j] + parameter[j]);
      if (p.v_first != nullptr) {
        float v_gate[8], v_first[8];
        to_floats(raw.v_gate, v_gate);
        to_floats(raw.v_first, v_first);
        to_floats(load8(p.v0 + column), parameter);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += (v_first[j] - v[j]) * sigmoid(v_gate[j] + parameter[j]);
      }
      float squares = 0.f;
      to_floats(load8(p.k_k + column), parameter);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        kk[j] = k[j] * parameter[j];
        squares += kk[j] * kk[j];
      }
      const float scale = 1.f / fmaxf(sqrtf(lane_sum<8>(squares)), 1e-12f);
      to_floats(load8(p.k_a + column), parameter);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        kk[j] *= scale;
        k[j] *= 1.f + (a[j] - 1.f) * parameter[j];
      }
      to_floats(load8(p.r_k + column), parameter);
#pragma unroll
      for (int j = 0; j < 8; ++j) bonus += r[j] * k[j] * parameter[j];
      bonus = lane_sum<8>(bonus);
      if (mine) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          s_r[my_token][channel + j] = r[j];
          s_decay[my_token][channel + j] = decay[j];
          s_kk[my_token][channel + j] = kk[j];
          s_kka[my_token][channel + j] = -kk[j] * a[j];
          s_k[my_token][channel + j] = k[j];
          s_v[my_token][channel + j] = v[j];
        }
      }
    }
    __syncthreads();
    if (my_token < kBlock && base + kBlock + my_token < end) raw = load_raw(base + kBlock + my_token);  // meanwhile

    for (int t = 0; t < count; ++t) {
      float removed[RowsPerThread] = {}, y[RowsPerThread] = {};
      float vector[kColumns];
      auto read = [&](const float(&from)[kHead]) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
          for (int j = 0; j < 8; j += 4) {
            *reinterpret_cast<float4*>(vector + part * 8 + j) =
                *reinterpret_cast<const float4*>(from + part * 32 + quarter * 8 + j);
          }
        }
      };
      read(s_kk[t]);
#pragma unroll
      for (int i = 0; i < RowsPerThread; ++i) {
        float even = 0.f, odd = 0.f;
#pragma unroll
        for (int j = 0; j < kColumns; j += 2) {
          even += s[i][j] * vector[j];
          odd += s[i][j + 1] * vector[j + 1];
        }
        removed[i] = lane_sum<4>(even + odd);
      }
      float value[RowsPerThread];
#pragma unroll
      for (int i = 0; i < RowsPerThread; ++i) value[i] = s_v[t][first_value + i];
      read(s_decay[t]);
#pragma unroll
      for (int i = 0; i < RowsPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s[i][j] *= vector[j];
      }
      read(s_k[t]);
#pragma unroll
      for (int i = 0; i < RowsPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s[i][j] += value[i] * vector[j];
      }
      read(s_kka[t]);
#pragma unroll
      for (int i = 0; i < RowsPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s[i][j] += removed[i] * vector[j];
      }
      read(s_r[t]);
#pragma unroll
      for (int i = 0; i < RowsPerThread; ++i) {
        float even = 0.f, odd = 0.f;
#pragma unroll
        for (int j = 0; j < kColumns; j += 2) {
          even += s[i][j] * vector[j];
          odd += s[i][j + 1] * vector[j + 1];
        }
        y[i] = lane_sum<4>(even + odd);
      }
      if (quarter == 0) {
#pragma unroll
        for (int i = 0; i < RowsPerThread; ++i) s_y[t][first_value + i] = y[i];
      }
    }
    __syncthreads();

    {
      float y[8], v[8], weight[8], bias[8], mixed[8];
      float sum = 0.f, squares = 0.f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        y[j] = mine ? s_y[my_token][channel + j] : 0.f;
        sum += y[j];
      }
      const float mean = lane_sum<8>(sum) / kHead;
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += (y[j] - mean) * (y[j] - mean);
      const float scale = rsqrtf(lane_sum<8>(squares) / kHead + kGroupNormEps);
      to_floats(load8(p.ln_weight + column), weight);
      to_floats(load8(p.ln_bias + column), bias);
      if (mine) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          v[j] = s_v[my_token][channel + j];
          mixed[j] = ((y[j] - mean) * scale * weight[j] + bias[j] + bonus * v[j]) * gate[j];
        }
        store8(p.out + static_cast<int64_t>(base + my_token) * p.width + column, to_half8(mixed));
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < RowsPerThread; ++i) {
    store_state(state + (first_value + i) * kHead + quarter * 8, s[i]);
    store_state(state + (first_value + i) * kHead + quarter * 8 + 32, s[i] + 8);
  }
}

template <int RowsPerThread, int kBlock>
cudaError_t run(const Wkv7& p, int rows, int float_state, void* stream) {
  const dim3 grid(p.width / kHead, rows), block(256 / RowsPerThread);
  return float_state ? launch(wkv7_kernel<RowsPerThread, kBlock, float>, grid, block, 0, stream, p)
                     : launch(wkv7_kernel<RowsPerThread, kBlock, half>, grid, block, 0, stream, p);
}

}  // namespace

// vectors: w0, a0, v0, k_k, k_a, r_k, ln_x.weight, ln_x.bias, each [width] fp16.
// longest: tokens of the longest row. v_first: null in layer 0.
extern "C" int rwkv_wkv7(const void* r, const void* k, const void* v, const void* lora, const void* v_first,
                         const void* const* vectors, void* state, int float_state, const int* slots,
                         const int* row_start, void* out, int rows, int tokens, int longest, int width, void* stream) {
  const half* const* vector = reinterpret_cast<const half* const*>(vectors);
  const Wkv7 p = {static_cast<const half*>(r),
                  static_cast<const half*>(k),
                  static_cast<const half*>(v),
                  static_cast<const half*>(lora),
                  static_cast<const half*>(v_first),
                  vector[0], vector[1], vector[2], vector[3], vector[4], vector[5], vector[6], vector[7],
                  state, slots, row_start, static_cast<half*>(out), tokens, width};
  if (longest == 1) return wkv7_decode(p, rows, float_state, stream);
  // Few rows cannot fill the device with blocks: give each more warps. Many rows: read shared memory less.
  if (rows * (width / kHead) <= 512) return run<2, 16>(p, rows, float_state, stream);
  return run<4, 8>(p, rows, float_state, stream);
}
