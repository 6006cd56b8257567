// Residual add + LayerNorm + token shift + mixes, over packed rows.
//
//   x       = x_in + delta                      (delta optional: the output of the block before)
//   u[t]    = LayerNorm(x[t])
//   d[t]    = u[t-1] - u[t], where u[-1] is what the row's slot kept
//   out_n   = u + d * mix_n,  n < mixes
//
// A block takes a strip of tokens, a thread eight channels of each. The u before its first token it computes
// again from x_in and delta: that costs a second read, mostly from L2, and saves a pass over memory and a
// grid-wide barrier. x_out must therefore not be x_in. Where tokens are too few for all multiprocessors,
// several blocks work on each: all compute its statistics, and each writes a slice of its channels.
#include <algorithm>

#include "common.cuh"

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxStrip = 16;
constexpr int kMaxSlices = 8;
constexpr int kWarpChannels = 32 * 8;
constexpr int kRowsAtATime = 16;  // whose kept u is copied: a recorded step may have few
constexpr float kEps = 1e-5f;

struct InTwo {  // fp16 in two parts that add up
  half part;
};

template <typename Delta>
struct Mix {
  const half* x_in;        // [T, C]
  const Delta* delta;      // [T, C], or [2, T, C] if in two, or null
  half* x_out;             // [T, C]
  const half *weight, *bias, *mixes;
  half* kept;              // kept[slots[row]] is u of the row's last token so far, and receives its newest one
  const half* before;      // before[row] is a copy of that for rows of several tokens
  const int *slots, *row_of;
  int singles;             // how many of the first rows have one token each
  const int* counts;       // where a recorded step finds that; or null
  half* out;               // [mixes, T, C]
  float* zeroed;           // [T, C] to clear, or null
  int tokens, width;
  int strip, slice;        // tokens and channels of a block
};

// Sixteen bytes to shared memory, to be there for this thread after wait_for_copies().
DEVICE void copy_early(half* to, const half* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  store8(to, load8(from));
#endif
}
DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Eight values of `delta` as they lie in memory.
template <typename Delta>
struct Delta8;
template <>
struct Delta8<half> {
  Half8 value;
  DEVICE void load(const half* p, int64_t) { value = load8(p); }
  DEVICE void add_to(float* x) const {
    float d[8];
    to_floats(value, d);
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] += d[j];
  }
};
template <>
struct Delta8<InTwo> {
  Delta8<half> parts[2];
  DEVICE void load(const InTwo* p, int64_t apart) {
    parts[0].load(&p->part, 0);
    parts[1].load(&p[apart].part, 0);
  }
  DEVICE void add_to(float* x) const {
    parts[0].add_to(x);
    parts[1].add_to(x);
  }
};
template <>
struct Delta8<float> {
  float4 low, high;
  DEVICE void load(const float* p, int64_t) {
    low = *reinterpret_cast<const float4*>(p);
    high = *reinterpret_cast<const float4*>(p + 4);
  }
  DEVICE void add_to(float* x) const {
    x[0] += low.x;
    x[1] += low.y;
    x[2] += low.z;
    x[3] += low.w;
    x[4] += high.x;
    x[5] += high.y;
    x[6] += high.z;
    x[7] += high.w;
  }
};

template <typename Delta>
struct Token {
  Half8 x;
  Delta8<Delta> delta;
};

template <typename Delta>
DEVICE Token<Delta> load_token(const Mix<Delta>& p, int64_t at) {
  Token<Delta> token = {};
  token.x = load8(p.x_in + at);
  if (p.delta != nullptr) token.delta.load(p.delta + at, static_cast<int64_t>(p.tokens) * p.width);
  return token;
}

// x_in + delta; what is kept is rounded, and that is what LayerNorm sees.
template <typename Delta>
DEVICE Half8 residual(const Token<Delta>& token) {
  float sum[8];
  to_floats(token.x, sum);
  token.delta.add_to(sum);
  return to_half8(sum);
}

// LayerNorm of one token, of which this thread has eight channels, or none. `moments` must be another
// one than in the call before, whose readers may not be done.
DEVICE Half8 normalised(const Half8& packed, bool mine, int width, const Half8& weight, const Half8& bias,
                        float2* moments) {
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  float x[8] = {}, sum = 0.f, squares = 0.f;
  if (mine) to_floats(packed, x);
#pragma unroll
  for (int j = 0; j < 8; ++j) sum += x[j];
  // Each warp's mean and squared deviations, then those of the whole from them (Chan, Golub and LeVeque).
  const float warp_mean = __fdividef(lane_sum<32>(sum), min(kWarpChannels, width - warp * kWarpChannels));
#pragma unroll
  for (int j = 0; j < 8; ++j) squares += mine ? (x[j] - warp_mean) * (x[j] - warp_mean) : 0.f;
  squares = lane_sum<32>(squares);
  if (threadIdx.x % 32 == 0) moments[warp] = make_float2(warp_mean, squares);
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const float start = moments[0].x;
  float shift = 0.f, deviations = 0.f;
  if (lane < warps) {
    const float count = min(kWarpChannels, width - lane * kWarpChannels), off = moments[lane].x - start;
    shift = count * off;
    deviations = moments[lane].y + count * off * off;
  }
  const float share = __fdividef(1.f, width);
  shift = lane_sum<32>(shift) * share;
  const float mean = start + shift, scale = rsqrtf(lane_sum<32>(deviations) * share - shift * shift + kEps);
  float w[8], b[8];
  to_floats(weight, w);
  to_floats(bias, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = (x[j] - mean) * scale * w[j] + b[j];
  return to_half8(x);
}

template <int Mixes, typename Delta>
__global__ void __launch_bounds__(kMaxThreads) mix_kernel(const __grid_constant__ Mix<Delta> p) {
  __shared__ float2 moments[2][kMaxThreads / 32];
  extern __shared__ __align__(16) half mixes[];  // [Mixes][slice]
  const int c = threadIdx.x * 8, in_slice = c - blockIdx.y * p.slice;
  const bool mine = c < p.width, writes = mine && 0 <= in_slice && in_slice < p.slice;
  const int begin = blockIdx.x * p.strip, end = min(begin + p.strip, p.tokens);
  const auto at = [&](int64_t row) { return row * p.width + c; };
  const int singles = p.counts != nullptr ? p.counts[0] : p.singles;
  // A row of several tokens is worked on by several blocks, so what its slot kept may change meanwhile.
  const auto before = [&](int row) { return load8(row < singles ? p.kept + at(p.slots[row]) : p.before + at(row)); };

  let_next_kernel_start();
  Half8 weight = {}, bias = {}, previous = {};
  if (writes) {
#pragma unroll
    for (int n = 0; n < Mixes; ++n) copy_early(mixes + n * p.slice + in_slice, p.mixes + at(n));
    weight = load8(p.weight + c);
    bias = load8(p.bias + c);
  }
  int row = p.row_of[begin];
  bool first = begin == 0 || p.row_of[begin - 1] != row;
  // What slots kept is the last step's work; a copy of it is this step's.
  if (writes && first && row < singles) previous = before(row);
  wait_for_previous_kernel();
  if (writes && first && row >= singles) previous = before(row);
  if (!first) {
    const Half8 x = mine ? residual(load_token(p, at(begin - 1))) : Half8();
    previous = normalised(x, mine, p.width, weight, bias, moments[(begin - 1) % 2]);
  }
  wait_for_copies();
  Token<Delta> coming = {};
  if (mine) coming = load_token(p, at(begin));
  for (int t = begin; t < end; ++t) {
    const Half8 x = residual(coming);
    if (mine && t + 1 < end) coming = load_token(p, at(t + 1));
    const int next_row = t + 1 < p.tokens ? p.row_of[t + 1] : -1;
    if (writes && first && t > begin) previous = before(row);
    const Half8 u = normalised(x, mine, p.width, weight, bias, moments[t % 2]);
    if (writes) {
      if (p.delta != nullptr) store8(p.x_out + at(t), x);
      if (next_row != row) store8(p.kept + at(p.slots[row]), u);
      if (p.zeroed != nullptr) {
        *reinterpret_cast<float4*>(p.zeroed + at(t)) = make_float4(0.f, 0.f, 0.f, 0.f);
        *reinterpret_cast<float4*>(p.zeroed + at(t) + 4) = make_float4(0.f, 0.f, 0.f, 0.f);
      }
      float now[8], difference[8];
      to_floats(u, now);
      to_floats(previous, difference);
#pragma unroll
      for (int j = 0; j < 8; ++j) difference[j] -= now[j];
#pragma unroll
      for (int n = 0; n < Mixes; ++n) {
        float mixed[8];
        to_floats(load8(mixes + n * p.slice + in_slice), mixed);
#pragma unroll
        for (int j = 0; j < 8; ++j) mixed[j] = now[j] + difference[j] * mixed[j];
        store8(p.out + at(static_cast<int64_t>(n) * p.tokens + t), to_half8(mixed));
      }
    }
    previous = u;
    first = next_row != row;
    row = next_row;
  }
}

__global__ void __launch_bounds__(kMaxThreads)
    kept_before_kernel(const half* kept, half* before, const int* slots, int all_slots, int most_rows, int singles,
                       const int* counts, int width) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int c = threadIdx.x * 8, rows = counts != nullptr ? counts[1] : most_rows;
  if (c >= width) return;
  for (int row = (counts != nullptr ? counts[0] : singles) + blockIdx.x; row < rows; row += gridDim.x) {
    const half* const from = kept + (static_cast<int64_t>(blockIdx.y) * all_slots + slots[row]) * width;
    store8(before + (static_cast<int64_t>(blockIdx.y) * most_rows + row) * width + c, load8(from + c));
  }
}

int divided_up(int a, int b) { return (a + b - 1) / b; }

template <int Mixes, typename Delta>
cudaError_t run(Mix<Delta> p, void* stream) {
  static const int multiprocessors = [] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  }();
  // Turing has less room than the widest model wants: its blocks take fewer channels.
  constexpr int kSliceBytes = Mixes * kWarpChannels * sizeof(half), kStatic = 2 * kMaxThreads / 32 * sizeof(float2);
  static const int room = std::min<int>(shared_bytes() - kStatic, kMaxThreads / 32 * kSliceBytes);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(mix_kernel<Mixes, Delta>, cudaFuncAttributeMaxDynamicSharedMemorySize, room);
  if (allowed != cudaSuccess) return allowed;
  const int warps = divided_up(p.width, kWarpChannels), threads = warps * 32;
  if (threads > kMaxThreads) return cudaErrorInvalidValue;
  p.strip = std::min(divided_up(p.tokens, multiprocessors * (kMaxThreads / threads)), kMaxStrip);
  const int strips = divided_up(p.tokens, p.strip);
  const int fewest = divided_up(warps * kSliceBytes, room);
  const int slices = std::max(fewest, std::min({multiprocessors / strips, warps, kMaxSlices}));
  p.slice = divided_up(warps, slices) * kWarpChannels;
  return launch(mix_kernel<Mixes, Delta>, dim3(strips, divided_up(p.width, p.slice)), dim3(threads),
                Mixes * p.slice * sizeof(half), stream, p);
}

}  // namespace

// before[plane][row] = kept[plane][slots[row]] for the rows of several tokens. kept: [planes, all_slots, width], before:
// [planes, rows, width]; `rows` is the most there may be, if `counts` says on the device how many there are.
extern "C" int rwkv_kept_before(const void* kept, void* before, const int* slots, int planes, int all_slots, int rows,
                                int singles, const int* counts, int width, void* stream) {
  const int longer = counts != nullptr ? rows : rows - singles;
  return launch(kept_before_kernel, dim3(std::min(longer, kRowsAtATime), planes), dim3(divided_up(width / 8, 32) * 32), 0,
                stream, static_cast<const half*>(kept), static_cast<half*>(before), slots, all_slots, rows, singles,
                counts, width);
}

// mixes is 6 (time mix) or 1 (channel mix); all fp16, but delta is of delta_kind: 0 fp16, 1 fp32, 2 fp16 in two parts.
// width: a multiple of 8, at most 8192. `before`: see rwkv_kept_before; null where every row has one token.
extern "C" int rwkv_mix(int mixes, int delta_kind, const void* x_in, const void* delta, void* x_out,
                        const void* weight, const void* bias, const void* mix_weights, const void* before, void* kept,
                        const int* slots, int singles, const int* counts, const int* row_of, void* out, float* zeroed,
                        int tokens, int width, void* stream) {
  const auto with = [&](auto* typed_delta) {
    using Delta = std::remove_const_t<std::remove_pointer_t<decltype(typed_delta)>>;
    const Mix<Delta> p = {static_cast<const half*>(x_in),
                          typed_delta,
                          static_cast<half*>(x_out),
                          static_cast<const half*>(weight),
                          static_cast<const half*>(bias),
                          static_cast<const half*>(mix_weights),
                          static_cast<half*>(kept),
                          static_cast<const half*>(before),
                          slots,
                          row_of,
                          singles,
                          counts,
                          static_cast<half*>(out),
                          zeroed,
                          tokens,
                          width,
                          0,
                          0};
    return mixes == 6 ? run<6>(p, stream) : run<1>(p, stream);
  };
  if (delta_kind == 2) return with(static_cast<const InTwo*>(delta));
  return delta_kind == 1 ? with(static_cast<const float*>(delta)) : with(static_cast<const half*>(delta));
}
