// How a token is chosen from a row's scores: step 6 of inference/engine/sampler.py.
//
// Top-k and top-p: with t a threshold on e_i = exp(z_i - max z), "both limits still hold for the e_i > t"
// is true for large t and false for small. The bits of a non-negative float order like an integer, so
// bisection over them ends at the exact threshold, or sooner, when one value is left in the interval.
#pragma once

#include "row_team.cuh"

constexpr float kGumbelClip = 6.2e-5f;

// As inference.engine.row_params.DrawPath and Needs.
enum Path : int { kGreedy = 0, kUnlimited = 1, kGumbel = 4, kNoise = 5 };
enum Needs : int { kRepetition = 1, kPenalties = 4, kDecay = 8, kSeen = 16, kMinP = 32 };

// As the record of inference.engine.cuda_sampler.
struct Row {
  float temperature, mass, log_min_p, repetition, first, later, decay, noise;
  int top_k, first_by_seen, path, needs, edits, stops;
  uint2 seed;
};

// A value and its id as one integer: larger for a larger value, of equal ones for the lower id.
DEVICE uint64_t ranked(float value, int id) {
  const uint32_t bits = __float_as_uint(value == 0.f ? 0.f : value);  // -0 equals 0
  const uint32_t order = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return static_cast<uint64_t>(order) << 32 | ~static_cast<uint32_t>(id);
}
DEVICE float ranked_value(uint64_t word) {
  const uint32_t order = static_cast<uint32_t>(word >> 32);
  return __uint_as_float(order ^ (order >> 31 ? 0x80000000u : 0xffffffffu));
}
DEVICE int ranked_id(uint64_t word) { return static_cast<int>(~static_cast<uint32_t>(word)); }

template <int Blocks>
DEVICE uint64_t row_best(Exchange<Blocks>& exchange, const float (&x)[kValues<Blocks>]) {
  float best = x[0];
  int index = 0;
#pragma unroll kUnroll<Blocks>
  for (int i = 1; i < kValues<Blocks>; ++i) {
    if (x[i] > best) {
      best = x[i];
      index = i;
    }
  }
  const uint64_t* all = exchange.all(lane_max(ranked(best, id_of<Blocks>(block_rank<Blocks>(), index))));
  uint64_t word = 0;
#pragma unroll
  for (int i = threadIdx.x % 32; i < kPartials<Blocks>; i += 32) word = max(word, all[i]);
  return lane_max(word);
}

// Philox-4x32-10 with counter (block, position, 0, 0), as inference/engine/rng.py.
DEVICE uint4 philox(uint32_t block, uint32_t position, uint2 key) {
  uint4 c = make_uint4(block, position, 0, 0);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t even = 0xD2511F53u, odd = 0xCD9E8D57u;
    c = make_uint4(__umulhi(odd, c.z) ^ c.y ^ key.x, odd * c.z, __umulhi(even, c.x) ^ c.w ^ key.y, even * c.x);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return c;
}

// Methods "gumbel" and "noise": a random term for each id.
template <int Blocks>
DEVICE void perturb(const Row& row, int position, float (&x)[kValues<Blocks>]) {
  const bool gumbel = row.path == kGumbel;
#pragma unroll kUnroll<Blocks>
  for (int i = 0; i < kValues<Blocks>; i += 4) {
    const uint4 words = philox(id_of<Blocks>(block_rank<Blocks>(), i) / 4, position, row.seed);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float uniform = static_cast<float>(word[j] >> 8) * 0x1p-24f;
      const float term = gumbel ? -logf(fmaxf(-log1pf(-uniform), kGumbelClip)) : __fmul_rn(uniform, row.noise);
      x[i + j] = __fadd_rn(x[i + j], term);
    }
  }
}

// What top-k and top-p leave. Values above `hi` keep their weight; those in (lo, hi] are equal, or only
// one, and share what is left.
struct Kept {
  int lo, hi;  // bits of floats
  float tie_weight, tie_share;

  DEVICE float weight(float e) const {
    const int bits = __float_as_int(e);
    if (bits > hi) return e;
    return bits > lo ? fminf(tie_weight, e * tie_share) : 0.f;
  }
};

template <int Blocks>
DEVICE Kept search(Exchange<Blocks>& exchange, const Row& row, float total, const float (&e)[kValues<Blocks>]) {
  const float top_k = static_cast<float>(row.top_k), top_mass = row.mass * total;
  int lo = -1, hi = __float_as_int(1.f);  // the limits hold above hi, not above lo; the largest e is 1
  MassAndCount above_lo = {total, kVocab}, above_hi = {0.f, 0.f};
  while (hi - lo > 1 && above_lo.count - above_hi.count > 1.f) {
    const int middle = lo + (hi - lo) / 2;
    const float threshold = __int_as_float(middle);
    MassAndCount above = {0.f, 0.f};
#pragma unroll kUnroll<Blocks>
    for (int i = 0; i < kValues<Blocks>; ++i) {
      if (e[i] > threshold) {
        above.mass += e[i];
        above.count += 1.f;
      }
    }
    above = row_sum(exchange, above);
    if (above.count < top_k && above.mass < top_mass) {
      hi = middle;
      above_hi = above;
    } else {
      lo = middle;
      above_lo = above;
    }
  }
  const float ties = above_lo.count - above_hi.count;
  return {lo, hi, (top_mass - above_hi.mass) / ties, fminf(top_k - above_hi.count, ties) / ties};
}

// Finds the lane into whose weight `target` falls when the lanes' weights are laid end to end, and makes
// `target` relative to it. Never a lane without weight, whatever rounding does.
DEVICE int pick_lane(float weight, float& target, float upto) {
  const unsigned some = __ballot_sync(0xffffffffu, weight > 0.f);
  const unsigned beyond = __ballot_sync(0xffffffffu, weight > 0.f && upto > target);
  const int lane = beyond != 0 ? __ffs(beyond) - 1 : 31 - __clz(some);
  target -= __shfl_sync(0xffffffffu, upto - weight, lane);
  return lane;
}

// The same among values of one thread.
template <int Count, int Unroll>
DEVICE int pick_value(const float (&weight)[Count], float& target) {
  int picked = 0;
  float upto = 0.f, before = 0.f;
  bool found = false;
#pragma unroll Unroll
  for (int i = 0; i < Count; ++i) {
    if (weight[i] > 0.f && !found) {
      picked = i;
      before = upto;
      found = upto + weight[i] > target;
    }
    upto += weight[i];
  }
  target -= before;
  return picked;
}

DEVICE float running_sum(float x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 >= step) x += below;
  }
  return x;
}

// Draws an id in proportion to `weight`: first a warp of the row, then its lane, then the value.
// The thread that holds the drawn id returns it, all others -1.
template <int Blocks>
DEVICE int draw(Exchange<Blocks>& exchange, float uniform, const float (&weight)[kValues<Blocks>]) {
  constexpr int kWarps = kThreads<Blocks> / 32, kPerLane = kPartials<Blocks> / 32;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float mine = 0.f;
#pragma unroll kUnroll<Blocks>
  for (int i = 0; i < kValues<Blocks>; ++i) mine += weight[i];
  const uint64_t* all = exchange.all(pack({lane_sum<32>(mine), 0.f}));

  float part[kPerLane], parts = 0.f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    part[i] = unpack(all[lane * kPerLane + i]).mass;
    parts += part[i];
  }
  float upto = running_sum(parts);
  float target = uniform * __shfl_sync(0xffffffffu, upto, 31);
  const int picked_lane = pick_lane(parts, target, upto);
  const int picked_part = pick_value<kPerLane, kPerLane>(part, target);  // only the picked lane's counts
  const int picked_warp = __shfl_sync(0xffffffffu, picked_lane * kPerLane + picked_part, picked_lane);
  target = __shfl_sync(0xffffffffu, target, picked_lane);
  if (picked_warp != block_rank<Blocks>() * kWarps + warp) return -1;

  if (pick_lane(mine, target, running_sum(mine)) != lane) return -1;
  return id_of<Blocks>(block_rank<Blocks>(), pick_value<kValues<Blocks>, kUnroll<Blocks>>(weight, target));
}

// Step 6. x: the scores; it is overwritten. The thread that holds the chosen id returns it, all others -1.
template <int Blocks>
DEVICE int choose(Exchange<Blocks>& exchange, const Row& row, int position, float (&x)[kValues<Blocks>]) {
  const bool perturbed = row.path == kGumbel || row.path == kNoise;
  if (perturbed) perturb<Blocks>(row, position, x);
  const uint64_t best = row_best<Blocks>(exchange, x);
  const float largest = ranked_value(best);
  if (row.path == kGreedy || perturbed || largest == -INFINITY) {
    const int id = ranked_id(best);
    const bool here = id / (kVocab / Blocks) == block_rank<Blocks>() && id / 4 % kThreads<Blocks> == threadIdx.x;
    return here ? id : -1;
  }

  const float least = row.needs & kMinP ? largest + row.log_min_p : -INFINITY;
  MassAndCount sum = {0.f, 0.f};
#pragma unroll kUnroll<Blocks>
  for (int i = 0; i < kValues<Blocks>; ++i) {
    x[i] = x[i] < least ? 0.f : expf(x[i] - largest);
    sum.mass += x[i];
  }
  if (row.path != kUnlimited) {
    const Kept kept = search<Blocks>(exchange, row, row_sum(exchange, sum).mass, x);
#pragma unroll kUnroll<Blocks>
    for (int i = 0; i < kValues<Blocks>; ++i) x[i] = kept.weight(x[i]);
  }
  return draw<Blocks>(exchange, static_cast<float>(philox(0, position, row.seed).x) * 0x1p-32f, x);
}
