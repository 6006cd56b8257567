// WKV-7 for rows of one token: bound by the bandwidth at which the states are read and written.
//
// Same formulas and the same division of S among threads as wkv7.cu, but each of the four warps derives
// the head's vectors for itself (two channels a lane), so that only GroupNorm needs the whole block. The
// state is on its way before anything else is looked at.
#include "wkv7.cuh"

namespace {

constexpr int kWarps = 4;
constexpr int kRows = 2;  // of S per thread

DEVICE float2 pair(const half* p) { return __half22float2(*reinterpret_cast<const half2*>(p)); }
DEVICE float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
DEVICE float2 operator-(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
DEVICE float2 operator*(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
DEVICE float2 sigmoids(float2 a) { return make_float2(sigmoid(a.x), sigmoid(a.y)); }
DEVICE float2 scaled(float2 a, float b) { return make_float2(a.x * b, a.y * b); }

template <typename State>
__global__ void __launch_bounds__(kWarps * 32, 6) wkv7_decode_kernel(const __grid_constant__ Wkv7 p) {
  __shared__ __align__(16) float s_vector[kWarps][5][kHead];  // kk, decay, k, -kk a, r
  __shared__ float s_v[kWarps][kHead], s_y[kHead];

  const int head = blockIdx.x, row = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = threadIdx.x % 4;
  const int first_value = (threadIdx.x / 4) * kRows;

  let_next_kernel_start();
  // The slots were fixed before the step's first kernel, and this layer's states are the last step's work.
  State* state = static_cast<State*>(p.state) +
                 (static_cast<int64_t>(p.slots[row]) * (p.width / kHead) + head) * kHead * kHead +
                 first_value * kHead + quarter * 8;
  float s[kRows][kColumns];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    load_state(state + i * kHead, s[i]);
    load_state(state + i * kHead + 32, s[i] + 8);
  }
  const int64_t column = head * kHead + lane * 2;
  const float2 w0 = pair(p.w0 + column), a0 = pair(p.a0 + column), v0 = pair(p.v0 + column);
  const float2 k_k = pair(p.k_k + column), k_a = pair(p.k_a + column), r_k = pair(p.r_k + column);
  wait_for_previous_kernel();

  const int64_t at = static_cast<int64_t>(p.row_start[row]) * p.width + column;
  const int64_t plane = static_cast<int64_t>(p.tokens) * p.width;
  const float2 r = pair(p.r + at), g = pair(p.lora + 3 * plane + at);
  float2 k = pair(p.k + at), v = pair(p.v + at);
  const float2 a = sigmoids(a0 + pair(p.lora + plane + at));
  const float2 w = sigmoids(w0 + pair(p.lora + at));
  if (p.v_first != nullptr) v = v + (pair(p.v_first + at) - v) * sigmoids(v0 + pair(p.lora + 2 * plane + at));
  float2 kk = k * k_k;
  kk = scaled(kk, 1.f / fmaxf(sqrtf(lane_sum<32>(kk.x * kk.x + kk.y * kk.y)), 1e-12f));
  const float2 one = make_float2(1.f, 1.f);
  k = k * (one + (a - one) * k_a);
  const float2 rkr = r * k * r_k;
  const float bonus = lane_sum<32>(rkr.x + rkr.y);

  float(&vector)[5][kHead] = s_vector[warp];
  const auto put = [&](float* to, float2 value) { *reinterpret_cast<float2*>(to + lane * 2) = value; };
  put(vector[0], kk);
  put(vector[1], make_float2(__expf(kDecayScale * w.x), __expf(kDecayScale * w.y)));
  put(vector[2], k);
  put(vector[3], scaled(kk * a, -1.f));
  put(vector[4], r);
  put(s_v[warp], v);
  __syncwarp();

  const auto read = [&](const float* from, float* to) {
#pragma unroll
    for (int j = 0; j < kColumns; j += 4) {
      *reinterpret_cast<float4*>(to + j) =
          *reinterpret_cast<const float4*>(from + (j / 8) * 32 + quarter * 8 + j % 8);
    }
  };
  float x[kColumns], removed[kRows], value[kRows];
  read(vector[0], x);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum += s[i][j] * x[j];
    removed[i] = lane_sum<4>(sum);
    value[i] = s_v[warp][first_value + i];
  }
  read(vector[1], x);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) s[i][j] *= x[j];
  }
  read(vector[2], x);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) s[i][j] += value[i] * x[j];
  }
  read(vector[3], x);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) s[i][j] += removed[i] * x[j];
    store_state(state + i * kHead, s[i]);
    store_state(state + i * kHead + 32, s[i] + 8);
  }
  read(vector[4], x);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) sum += s[i][j] * x[j];
    sum = lane_sum<4>(sum);
    if (quarter == 0) s_y[first_value + i] = sum;
  }
  __syncthreads();
  if (warp != 0) return;

  const float2 y = *reinterpret_cast<const float2*>(s_y + lane * 2);
  const float mean = lane_sum<32>(y.x + y.y) / kHead;
  const float2 off = make_float2(y.x - mean, y.y - mean);
  const float scale = rsqrtf(lane_sum<32>(off.x * off.x + off.y * off.y) / kHead + kGroupNormEps);
  const float2 normed = scaled(off, scale) * pair(p.ln_weight + column) + pair(p.ln_bias + column);
  const float2 out = (normed + scaled(v, bonus)) * g;
  *reinterpret_cast<half2*>(p.out + at) = __floats2half2_rn(out.x, out.y);
}

}  // namespace

cudaError_t wkv7_decode(const Wkv7& p, int rows, int float_state, void* stream) {
  const dim3 grid(p.width / kHead, rows), block(kWarps * 32);
  return float_state ? launch(wkv7_decode_kernel<float>, grid, block, 0, stream, p)
                     : launch(wkv7_decode_kernel<half>, grid, block, 0, stream, p);
}
