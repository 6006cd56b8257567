// What the Hopper product has to do, and which part of it falls to a block.
//
// The work is a row of steps, tile after tile: [128 rows of W] x [rows of x] over 64 values of k. Each block takes an
// equal run of steps, wherever tiles end, so that every multiprocessor reads to the last moment.
#pragma once

#include "gemm.cuh"
#include "hopper.cuh"

constexpr int kBoxRows = 32;  // rows of W that one copy brings
constexpr int kTileBoxes = 4;
constexpr int kTileRows = kBoxRows * kTileBoxes;
constexpr int kStepK = 64;
constexpr int kBoxBytes = kBoxRows * kStepK * 2;
constexpr int kWarps = 8;  // that multiply, each 16 rows of W: a fragment
constexpr int kThreads = (kWarps + 1) * 32;
constexpr int kMaxBlocks = 144;  // the multiprocessors of a whole chip
constexpr int kMaxSharing = 8;   // blocks to a tile: more sums take longer to add up than they save
constexpr int kMaxColumns = 16;  // of eight rows of x

struct Group {
  void* y;  // [M, y_stride] fp16, or fp32 with `float_out`
  int rows;
  int first_tile;
  int y_stride;
  int activation;
};

struct Work {
  CUtensorMap w[kMaxGroups];
  CUtensorMap x[kMaxGroups];
  Group group[kMaxGroups];
  int count;
  int m;
  int tiles;   // of all groups, for one chunk of the rows of x
  int chunks;
  int steps;   // to a tile
  bool all_add_up;  // each block that shares a tile adds up a part of it; needs blocks that have one tile each
  bool float_out;
};

struct Tile {
  int group;
  int chunk;  // of the rows of x
  int row;    // first row of W within the group
  int boxes;
};

DEVICE Tile tile_at(const Work& work, int index) {
  Tile tile;
  tile.chunk = index / work.tiles;
  const int within = index % work.tiles;
  tile.group = 0;
  while (tile.group + 1 < work.count && within >= work.group[tile.group + 1].first_tile) ++tile.group;
  const Group& group = work.group[tile.group];
  tile.row = (within - group.first_tile) * kTileRows;
  tile.boxes = min(kTileBoxes, (group.rows - tile.row) / kBoxRows);
  return tile;
}

DEVICE int all_steps(const Work& work) { return work.tiles * work.chunks * work.steps; }
DEVICE int first_step(const Work& work, int block) { return all_steps(work) * block / static_cast<int>(gridDim.x); }
DEVICE int block_of(const Work& work, int step) {
  return ((step + 1) * static_cast<int>(gridDim.x) - 1) / all_steps(work);
}

// Walks the steps of one block.
struct Walk {
  const Work& work;
  int index, end;
  int k;  // step within the tile
  Tile tile;

  DEVICE Walk(const Work& work, int begin, int end) : work(work), index(begin), end(end), k(begin % work.steps) {
    tile = tile_at(work, begin / work.steps);
  }
  DEVICE bool done() const { return index >= end; }
  DEVICE void next() {
    ++index;
    if (++k < work.steps) return;
    k = 0;
    if (!done()) tile = tile_at(work, index / work.steps);
  }
};

// How many blocks share the work. Whole tiles, or equal parts of one, need the fewest sums of others; where that would
// leave many multiprocessors idle, the runs of steps end where they may.
inline int count_blocks(const Work& work, int multiprocessors) {
  const int tiles = work.tiles * work.chunks, most = min(multiprocessors, kMaxBlocks);
  if (tiles <= most) {
    const int each = min(most / tiles, min(work.steps, kMaxSharing));
    const bool small = each == min(work.steps, kMaxSharing);
    if (small || tiles * each * 5 >= most * 4) return tiles * each;
  } else {
    const int rounds = (tiles + most - 1) / most;
    if (tiles % rounds == 0 && tiles / rounds * 20 >= most * 19) return tiles / rounds;
  }
  return min(most, tiles * work.steps);
}
