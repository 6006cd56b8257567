// A warp's pipeline of equal tiles between memory and shared memory.
#pragma once

#include "common.cuh"

// A warp's ring of tiles in shared memory. Lane 0 runs the copies; all lanes wait for them.
struct Ring {
  char* tiles;
  uint64_t* arrived;  // one barrier per tile
  int count, bytes;
  bool hold;  // in L2 until it is written back: 2 to 4% faster where the tiles are many times what L2 holds

  DEVICE char* tile(int item) const { return tiles + (item % count) * bytes; }

#if __CUDA_ARCH__ >= 900
  static DEVICE uint32_t address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

  DEVICE void open(int lane) {
    if (lane == 0) {
      for (int i = 0; i < count; ++i) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address(arrived + i)) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
  }
  // Start bringing `item`. Its tile's last content must have left.
  DEVICE void fetch(int item, const void* from, int lane) {
    if (lane != 0) return;
    const uint32_t barrier = address(arrived + item % count);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    if (hold) {
      asm volatile(
          "{\n.reg .b64 last;\n"
          "createpolicy.fractional.L2::evict_last.b64 last, 1.0;\n"
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], last;\n}" ::
              "r"(address(tile(item))),
          "l"(from), "r"(bytes), "r"(barrier)
          : "memory");
      return;
    }
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(tile(item))),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
  }
  DEVICE void wait(int item, const void*, int) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(address(arrived + item % count)),
        "r"((item / count) & 1)
        : "memory");
  }
  // Every lane has written its share of the tile.
  DEVICE void send(int item, void* to, int lane) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane != 0) return;
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address(tile(item))),
                 "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  DEVICE void wait_until_sent() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
#else
  DEVICE void copy(void* to, const void* from, int lane) {
    for (int i = lane * 16; i < bytes; i += 512) {
      *reinterpret_cast<uint4*>(static_cast<char*>(to) + i) =
          *reinterpret_cast<const uint4*>(static_cast<const char*>(from) + i);
    }
    __syncwarp();
  }
  DEVICE void open(int) {}
  DEVICE void fetch(int, const void*, int) {}
  DEVICE void wait(int item, const void* from, int lane) { copy(tile(item), from, lane); }
  DEVICE void send(int item, void* to, int lane) {
    __syncwarp();
    copy(to, tile(item), lane);
  }
  DEVICE void wait_until_sent() {}
#endif
};
