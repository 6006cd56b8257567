// What the Hopper product has to do, and which part of it falls to a block.
//
// W is cut into tiles of up to 128 rows. A block takes one tile or several, or shares one with others, each of which
// then has a part of k; it goes through its part in steps of 64.
#pragma once

#include "gemm.cuh"
#include "hopper.cuh"

constexpr int kStepK = 64;
constexpr int kFragmentBytes = kFragment * kStepK * 2;
constexpr int kColumnBytes = 8 * kStepK * 2;
constexpr int kSumBytes = kFragment * 8 * 4;  // of one fragment and eight rows of x
constexpr int kMinFragments = 4;  // of 16 rows of W in a tile, each a warp's part; thinner tiles have too many steps
constexpr int kMaxFragments = 8;
constexpr int kMaxBlocks = 144;  // the multiprocessors of a whole chip
constexpr int kMaxParts = 8;     // of a tile: more sums take longer to add up than they save
constexpr int kMaxColumns = 16;  // of eight rows of x

HOST_DEVICE int divided_up(int a, int b) { return (a + b - 1) / b; }

struct Group {
  void* y;  // [M, y_stride] fp16, or fp32 with `float_out`
  int rows;
  int first_tile;
  int steps;  // to a tile
  int y_stride;
  int activation;
};

// How the work is cut: tiles of so many fragments and eights of rows of x, in parts of k, or so many tiles to a block.
struct Cut {
  int fragments, columns, parts, rounds;
};

struct Work {
  CUtensorMap w[kMaxGroups];
  CUtensorMap x[kMaxGroups];
  Group group[kMaxGroups];
  Cut cut;
  int count;
  int m;
  int tiles;   // of all groups, for one chunk of the rows of x
  int chunks;
  bool float_out;
};

struct Tile {
  int group;
  int chunk;  // of the rows of x
  int row;    // first row of W within the group
  int fragments;
  int begin, end;  // steps that fall to this block
};

DEVICE Tile tile_at(const Work& work, int index) {
  Tile tile;
  tile.chunk = index / work.tiles;
  const int within = index % work.tiles;
  tile.group = 0;
  while (tile.group + 1 < work.count && within >= work.group[tile.group + 1].first_tile) ++tile.group;
  const Group& group = work.group[tile.group];
  tile.row = (within - group.first_tile) * work.cut.fragments * kFragment;
  tile.fragments = min(work.cut.fragments, (group.rows - tile.row) / kFragment);
  const int part = blockIdx.x % work.cut.parts;
  tile.begin = group.steps * part / work.cut.parts;
  tile.end = group.steps * (part + 1) / work.cut.parts;
  return tile;
}

// The tiles that this block has a part of, or all of them: from `first` to before `end`.
struct Share {
  int first, end;

  DEVICE explicit Share(const Work& work) : first(blockIdx.x / work.cut.parts * work.cut.rounds) {
    end = min(first + work.cut.rounds, work.tiles * work.chunks);
  }
};

// Walks the steps of a share.
struct Walk {
  const Work& work;
  const Share share;
  int index;  // of the tile
  Tile tile;
  int k;  // step within it

  DEVICE Walk(const Work& work, const Share& share)
      : work(work), share(share), index(share.first), tile(tile_at(work, index)), k(tile.begin) {}
  DEVICE bool done() const { return index >= share.end; }
  DEVICE void next() {
    if (++k < tile.end) return;
    ++index;
    if (done()) return;
    tile = tile_at(work, index);
    k = tile.begin;
  }
};

// What adding up the parts of a tile takes, in bytes fetched in the same time (measured on an H200): so many, and so
// many for each byte of sums.
constexpr int kSumming = 48 * 1024, kSummingByte = 6;

// The cut whose busiest block is done first. steps: to the deepest product; most_parts: steps to the shallowest, so that
// no part is empty.
inline Cut choose_cut(int count, const int* rows, int m, int steps, int most_parts, int multiprocessors) {
  const int most = min(multiprocessors, kMaxBlocks);
  Cut best = {};
  int64_t least = 0;
  const auto consider = [&](int columns, int fragments) {
    int tiles = 0;
    for (int i = 0; i < count; ++i) tiles += divided_up(rows[i], fragments * kFragment);
    tiles *= divided_up(m, columns * 8);
    const Cut cut = {fragments, columns, max(1, min(min(most / tiles, kMaxParts), most_parts)),
                     divided_up(tiles, most)};
    const int64_t step_bytes = fragments * kFragmentBytes + columns * kColumnBytes;
    int64_t cost = step_bytes * cut.rounds * divided_up(steps, cut.parts);
    if (cut.parts > 1) cost += kSumming + kSummingByte * fragments * columns * kSumBytes;
    if (best.fragments == 0 || cost < least) {
      best = cut;
      least = cost;
    }
  };
  const int fewest = m <= 8 ? 1 : m <= 16 ? 2 : m <= 32 ? 4 : 8, widest = m <= 64 ? fewest : kMaxColumns;
  for (int columns = fewest; columns <= widest; columns *= 2) {
    for (int fragments = kMaxFragments; fragments >= kMinFragments; --fragments) consider(columns, fragments);
  }
  return best;
}
