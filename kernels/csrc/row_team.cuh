// The threads that share a row of up to 65536 values, and how they come to sums over it.
//
// The values stay in the registers of a cluster of four blocks; chips without clusters give a row one
// block, whose values overflow to local memory. Every sum over the row is a tree of fixed shape, so it
// depends on nothing but the row. Each warp of the row reduces the same partial sums in the same order,
// so all of them take the same decisions without being told.
#pragma once

#include "common.cuh"

constexpr int kVocab = 65536;  // at most

template <int Blocks>
constexpr int kThreads = Blocks == 1 ? 1024 : 512;
template <int Blocks>
constexpr int kValues = kVocab / Blocks / kThreads<Blocks>;
template <int Blocks>
constexpr int kUnroll = Blocks == 1 ? 1 : kValues<Blocks>;  // indexed at run time, values live in local memory
template <int Blocks>
constexpr int kPartials = Blocks * kThreads<Blocks> / 32;  // one of each warp of the row

// Value i of a thread belongs to this id. Four neighbouring values are one 16-byte access.
template <int Blocks>
DEVICE int id_of(int rank, int i) {
  return rank * (kVocab / Blocks) + (i / 4 * kThreads<Blocks> + threadIdx.x) * 4 + i % 4;
}

template <int Blocks>
DEVICE int block_rank() {
  return Blocks == 1 ? 0 : blockIdx.x;
}

template <int Blocks>
DEVICE void row_barrier() {
#if __CUDA_ARCH__ >= 900
  if constexpr (Blocks > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// Store to the shared memory of another block of the cluster.
DEVICE void store_remote(uint64_t* p, int rank, uint64_t value) {
#if __CUDA_ARCH__ >= 900
  const uint32_t here = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(value) : "memory");
#endif
}

// Shows every warp of the row what each warp has found.
template <int Blocks>
struct Exchange {
  // Two sets, in turns: a warp may still read one while others already fill the next.
  uint64_t (&partials)[2][kPartials<Blocks>];
  int turn;

  // `mine` is the same in all lanes of the warp. Returns [kPartials], good until the call after the next.
  DEVICE const uint64_t* all(uint64_t mine) {
    turn ^= 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (Blocks > 1) {
      const int at = block_rank<Blocks>() * (kThreads<Blocks> / 32) + warp;
      if (lane < Blocks) store_remote(&partials[turn][at], lane, mine);
    } else {
      if (lane == 0) partials[turn][warp] = mine;
    }
    __syncwarp();
    row_barrier<Blocks>();
    return partials[turn];
  }
};

struct MassAndCount {
  float mass, count;  // counts to 65536 are exact, and float adds are the fast ones
};

DEVICE uint64_t pack(MassAndCount s) {
  return static_cast<uint64_t>(__float_as_uint(s.count)) << 32 | __float_as_uint(s.mass);
}
DEVICE MassAndCount unpack(uint64_t word) {
  return {__uint_as_float(static_cast<uint32_t>(word)), __uint_as_float(static_cast<uint32_t>(word >> 32))};
}

template <int Blocks>
DEVICE MassAndCount row_sum(Exchange<Blocks>& exchange, MassAndCount mine) {
  const uint64_t* all = exchange.all(pack({lane_sum<32>(mine.mass), lane_sum<32>(mine.count)}));
  MassAndCount sum = {0.f, 0.f};
#pragma unroll
  for (int i = threadIdx.x % 32; i < kPartials<Blocks>; i += 32) {
    const MassAndCount part = unpack(all[i]);
    sum.mass += part.mass;
    sum.count += part.count;
  }
  return {lane_sum<32>(sum.mass), lane_sum<32>(sum.count)};
}

DEVICE uint64_t lane_max(uint64_t x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
