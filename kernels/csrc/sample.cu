// One token for each row of logits, with everything the row asks for, in one launch.
//
// What is computed is documented at inference/engine/sampler.py, whose arithmetic this repeats; only the
// order in which a draw of method "filter" goes through the weights differs: by thread, not by size.
#include <cfloat>

#include "choose.cuh"

namespace {

constexpr uint8_t kInOutput = 2;  // bit of `seen`

// Adds `value` to the logit of `id` at the positions `begin` to `end` - 1.
struct Edit {
  int id;
  float value;
  int begin, end;
};

struct Sampler {
  const float* logits;  // [rows, vocab]
  const int* slots;     // [rows]
  int* tokens;          // [rows]
  int vocab;            // a multiple of 4
  // By slot.
  const Row* rows;
  float* penalties;     // [slots, vocab]
  uint8_t* seen;        // [slots, vocab]
  const Edit* edits;    // [slots, max_edits]
  const int* stop_ids;  // [slots, max_stops]
  const uint32_t* masks;  // [slots, (vocab + 31) / 32]: ids whose bit is 0 are barred, where `masked` is set
  const int* masked;      // [slots]
  int max_edits, max_stops;
  int *position, *last_token, *done;
};

// A bias or ban touches few ids: find the warp and lane that hold each.
template <int Blocks>
DEVICE void add_edits(const Sampler& p, const Row& row, int slot, int position, float (&x)[kValues<Blocks>]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_id = block_rank<Blocks>() * (kVocab / Blocks);
  for (int base = 0; base < row.edits; base += 32) {
    Edit edit = {-1, 0.f, 0, 0};
    if (base + lane < row.edits) edit = p.edits[static_cast<int64_t>(slot) * p.max_edits + base + lane];
    const int at = edit.id - first_id;
    const bool here = at >= 0 && at < kVocab / Blocks && at / 4 % kThreads<Blocks> / 32 == warp;
    unsigned left = __ballot_sync(0xffffffffu, here && edit.begin <= position && position < edit.end);
    for (; left != 0; left &= left - 1) {
      const int source = __ffs(left) - 1;
      const int place = __shfl_sync(0xffffffffu, at, source);
      const float value = __shfl_sync(0xffffffffu, edit.value, source);
      const int index = place / 4 % 32 == lane ? place / 4 / kThreads<Blocks> * 4 + place % 4 : -1;
#pragma unroll kUnroll<Blocks>
      for (int i = 0; i < kValues<Blocks>; ++i) x[i] += i == index ? value : 0.f;
    }
  }
}

// Steps 1 to 5: the row's scores; -inf behind the vocabulary's end.
template <int Blocks>
DEVICE void load_scores(const Sampler& p, const Row& row, int slot, int position, float (&x)[kValues<Blocks>]) {
  const int rank = block_rank<Blocks>();
  const float* logits = p.logits + static_cast<int64_t>(blockIdx.y) * p.vocab;
  const int64_t of_slot = static_cast<int64_t>(slot) * p.vocab;
#pragma unroll kUnroll<Blocks>
  for (int i = 0; i < kValues<Blocks>; i += 4) {
    const int id = id_of<Blocks>(rank, i);
    float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if (id < p.vocab) v = *reinterpret_cast<const float4*>(logits + id);
    x[i] = v.x;
    x[i + 1] = v.y;
    x[i + 2] = v.z;
    x[i + 3] = v.w;
  }
  if (row.needs & kRepetition) {
#pragma unroll kUnroll<Blocks>
    for (int i = 0; i < kValues<Blocks>; i += 4) {
      const int id = id_of<Blocks>(rank, i);
      uint32_t seen = id < p.vocab ? *reinterpret_cast<const uint32_t*>(p.seen + of_slot + id) : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j, seen >>= 8) {
        if (seen & 0xff) x[i + j] = x[i + j] > 0.f ? x[i + j] / row.repetition : __fmul_rn(x[i + j], row.repetition);
      }
    }
  }
  add_edits<Blocks>(p, row, slot, position, x);
  if (p.masked[slot]) {
    const uint32_t* mask = p.masks + static_cast<int64_t>(slot) * ((p.vocab + 31) / 32);
#pragma unroll kUnroll<Blocks>
    for (int i = 0; i < kValues<Blocks>; i += 4) {
      const int id = id_of<Blocks>(rank, i);
      if (id >= p.vocab) continue;
      const uint32_t bits = mask[id / 32] >> (id % 32);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (!(bits >> j & 1)) x[i + j] = -INFINITY;
      }
    }
  }
  if (row.needs & kPenalties) {
#pragma unroll kUnroll<Blocks>
    for (int i = 0; i < kValues<Blocks>; i += 4) {
      const int id = id_of<Blocks>(rank, i);
      if (id >= p.vocab) continue;
      const float4 penalty = *reinterpret_cast<const float4*>(p.penalties + of_slot + id);
      x[i] -= penalty.x;
      x[i + 1] -= penalty.y;
      x[i + 2] -= penalty.z;
      x[i + 3] -= penalty.w;
    }
  }
  const float temperature = row.path == kGreedy ? 1.f : row.temperature;
#pragma unroll kUnroll<Blocks>
  for (int i = 0; i < kValues<Blocks>; ++i) {
    // Broken logits must not break the search: NaN counts as -inf, and inf as the largest float.
    x[i] = fminf(fmaxf(x[i] / temperature, -INFINITY), FLT_MAX);
  }
}

// Decay of all penalties, and the drawn id's own growth. Rounded as `replay_penalties` rounds.
template <int Blocks>
DEVICE void update_penalties(const Sampler& p, const Row& row, int64_t of_slot, int token) {
  float old = 0.f;
  bool first = false;
  if (token >= 0) {
    old = p.penalties[of_slot + token];
    first = row.first_by_seen ? !(p.seen[of_slot + token] & kInOutput) : old == 0.f;
  }
  if (row.needs & kDecay) {
#pragma unroll
    for (int i = 0; i < kValues<Blocks>; i += 4) {
      const int id = id_of<Blocks>(block_rank<Blocks>(), i);
      if (id >= p.vocab) continue;
      float4* at = reinterpret_cast<float4*>(p.penalties + of_slot + id);
      const float4 v = *at;
      if (v.x == 0.f && v.y == 0.f && v.z == 0.f && v.w == 0.f) continue;  // most are: spare the writes
      *at = make_float4(v.x * row.decay, v.y * row.decay, v.z * row.decay, v.w * row.decay);
    }
  }
  if (token >= 0) {
    p.penalties[of_slot + token] = __fadd_rn(__fmul_rn(old, row.decay), first ? row.first : row.later);
  }
}

template <int Blocks>
__global__ void __launch_bounds__(kThreads<Blocks>, Blocks == 1 ? 1 : 2)
    sample_kernel(const __grid_constant__ Sampler p) {
  __shared__ uint64_t partials[2][kPartials<Blocks>];
  let_next_kernel_start();
  wait_for_previous_kernel();

  const int slot = p.slots[blockIdx.y];
  if (p.done[slot]) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p.tokens[blockIdx.y] = -1;
    return;
  }
  const Row& row = p.rows[slot];
  const int position = p.position[slot];
  Exchange<Blocks> exchange = {partials, 0};

  float x[kValues<Blocks>];
  load_scores<Blocks>(p, row, slot, position, x);
  row_barrier<Blocks>();  // the cluster's blocks all run, and have read what the last lines change
  const int token = choose<Blocks>(exchange, row, position, x);

  const int64_t of_slot = static_cast<int64_t>(slot) * p.vocab;
  if (row.needs & kPenalties) update_penalties<Blocks>(p, row, of_slot, token);
  if (token < 0) return;
  if (row.needs & kSeen) p.seen[of_slot + token] |= kInOutput;
  p.position[slot] = position + 1;
  p.last_token[slot] = token;
  p.tokens[blockIdx.y] = token;
  for (int i = 0; i < row.stops; ++i) {
    if (p.stop_ids[static_cast<int64_t>(slot) * p.max_stops + i] == token) p.done[slot] = 1;
  }
}

// Whether the code that runs on this device was compiled for an architecture with clusters.
bool has_clusters() {
  static const bool answer = [] {
    cudaFuncAttributes attributes = {};
    return cudaFuncGetAttributes(&attributes, sample_kernel<1>) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return answer;
}

cudaError_t launch_cluster(const Sampler& p, int rows, void* stream) {
  constexpr int kBlocks = 4;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kBlocks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks, rows);
  config.blockDim = dim3(kThreads<kBlocks>);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, sample_kernel<kBlocks>, p);
}

__global__ void redirect_kernel(const int* slots, const int* done, int dummy, int* out, int rows) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows) out[row] = done[slots[row]] ? dummy : slots[row];
}

}  // namespace

// Draws tokens[rows] from logits [rows, vocab] fp32, and accounts for them in the buffers by slot: records [slots],
// penalties fp32 and seen uint8 [slots, vocab], edits [slots, max_edits], stop_ids [slots, max_stops], masks
// [slots, (vocab + 31) / 32] with masked [slots], and position, last_token and done [slots]. Row i has slot slots[i]. If that is done already its token is -1 and
// nothing changes, so that such a slot may pad the batch, any number of times. vocab: a multiple of 4, <= 65536.
extern "C" int rwkv_sample(const float* logits, const int* slots, int* tokens, int rows, int vocab, const void* records,
                           float* penalties, uint8_t* seen, const void* edits, int max_edits, const int* stop_ids,
                           int max_stops, const void* masks, const int* masked, int* position, int* last_token,
                           int* done, void* stream) {
  if (vocab < 4 || vocab > kVocab || vocab % 4 != 0) return cudaErrorInvalidValue;
  const Sampler p = {logits, slots, tokens, vocab, static_cast<const Row*>(records), penalties, seen,
                     static_cast<const Edit*>(edits), stop_ids, static_cast<const uint32_t*>(masks), masked,
                     max_edits, max_stops, position, last_token, done};
  if (has_clusters()) return launch_cluster(p, rows, stream);
  return launch(sample_kernel<1>, dim3(1, rows), dim3(kThreads<1>), 0, stream, p);
}

// out[i] = slots[i], or `dummy` where that slot is done.
extern "C" int rwkv_redirect(const int* slots, const int* done, int dummy, int* out, int rows, void* stream) {
  constexpr int kRedirectThreads = 256;
  const dim3 grid((rows + kRedirectThreads - 1) / kRedirectThreads);
  return launch(redirect_kernel, grid, dim3(kRedirectThreads), 0, stream, slots, done, dummy, out, rows);
}
