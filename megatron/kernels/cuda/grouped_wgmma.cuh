#pragma once

#include <algorithm>

#include "megatron/kernels/cuda/barrier.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/pipeline_state.cuh"
#include "megatron/kernels/cuda/wgmma.cuh"

// Products of grouped rows (grouped_matmul.h) on the tensor cores of compute capability 9.0a.
// Persistent blocks take tiles of the output in turn and find the group of each from the offsets. A
// producer warp fills a ring with tiles of both operands by TMA; two consumer warpgroups have 64
// rows of the output tile each.
namespace megatron::kernels::cuda {

enum class GroupedProduct {
  kForward,        // y = x w^T: both operands are K-major
  kInputGradient,  // dx = dy w: w is MN-major
  kWeightGradient  // dw = dy^T x: both are MN-major, and the depth is the rows of the group
};

struct GroupedShape {
  static constexpr int kRows = 128;     // of an output tile
  static constexpr int kColumns = 256;  // likewise
  static constexpr int kDepth = 64;     // of a stage
  static constexpr int kStages = 4;
  static constexpr int kGroups = kRows / 64;  // consumer warpgroups
  static constexpr int kConsumers = kGroups * kWarpgroup;
  static constexpr int kBlock = kConsumers + kWarpgroup;
  static constexpr int kTiles = kColumns / 8;  // columns of a product
  static constexpr int kRegisters = 240;
  static constexpr int kCopyRegisters = 24;
  static_assert(kConsumers * kRegisters + kWarpgroup * kCopyRegisters <= 65536);

  // In bytes.
  static constexpr int kMnTile = kDepth * kTileRowBytes;  // 64 columns of an MN-major operand
  static constexpr int kLeft = kRows * kTileRowBytes;
  static constexpr int kRight = kColumns * kTileRowBytes;
  static constexpr int kStage = kLeft + kRight;
  // A warp stores its rows through shared memory, 64 columns at a time.
  static constexpr int kStoredColumns = 64;
  static constexpr int kStoredRow = kStoredColumns * 2 + 16;  // the padding avoids bank conflicts
  static constexpr int kStored = kConsumers / kWarp * 16 * kStoredRow;
  static constexpr int kBytes = kTileAlignment + kStages * kStage + kStored;
};
static_assert(GroupedShape::kBytes <= 227 * 1024);

// A tile of the output.
struct GroupedTile {
  int group;      // the number of groups: rows behind the last one
  int row, end;   // of the output: the tile's first row, the end of the rows that it may write
  int column;     // first column
  int depth;      // where the depth begins: a row of x and dy for a weight gradient
  int depth_end;  // likewise
};

// Finds tiles by their number, in increasing order. The tiles of a group follow each other, those
// of one column of tiles first, so that blocks at work share the group's matrix.
template <GroupedProduct kProduct>
struct GroupedTiles {
  const int* offsets;
  int groups, rows, columns, depth;  // of the output; of the product unless the rows are its depth
  int group = 0;
  int first = 0;  // number of the group's first tile

  __device__ __forceinline__ bool find(int number, GroupedTile& tile) {
    constexpr int kRows = GroupedShape::kRows;
    const int across = (columns + GroupedShape::kColumns - 1) / GroupedShape::kColumns;
    if constexpr (kProduct == GroupedProduct::kWeightGradient) {
      const int down = (rows + kRows - 1) / kRows;
      const int rest = number % (down * across);
      tile.group = number / (down * across);
      if (tile.group >= groups) return false;
      tile.row = rest % down * kRows;
      tile.end = rows;
      tile.column = rest / down * GroupedShape::kColumns;
      tile.depth = offsets[tile.group];
      tile.depth_end = offsets[tile.group + 1];
      return true;
    } else {
      for (; group <= groups; ++group) {
        const int begin = offsets[group];
        const int end = group < groups ? offsets[group + 1] : rows;
        const int down = (end - begin + kRows - 1) / kRows;
        if (number < first + down * across) {
          const int rest = number - first;
          tile.group = group;
          tile.row = begin + rest % down * kRows;
          tile.end = end;
          tile.column = rest / down * GroupedShape::kColumns;
          tile.depth = 0;
          tile.depth_end = group < groups ? depth : 0;
          return true;
        }
        first += down * across;
      }
      return false;
    }
  }
};

struct GroupedMaps {
  CUtensorMap left, right;
};

// Shared-memory addresses of a block.
struct GroupedRing {
  uint32_t tiles, barriers;

  __device__ uint32_t left(int stage) const {
    return tiles + static_cast<uint32_t>(stage * GroupedShape::kStage);
  }
  __device__ uint32_t right(int stage) const { return left(stage) + GroupedShape::kLeft; }
  __device__ uint32_t full(int stage) const { return barriers + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t empty(int stage) const { return full(GroupedShape::kStages + stage); }
};

template <GroupedProduct kProduct>
__device__ __forceinline__ void fill_grouped_ring(const GroupedMaps& maps, const GroupedRing& ring,
                                                  GroupedTiles<kProduct> tiles) {
  constexpr int kDepth = GroupedShape::kDepth;
  PipelineState<GroupedShape::kStages> state;
  GroupedTile tile;
  for (int number = static_cast<int>(blockIdx.x); tiles.find(number, tile);
       number += static_cast<int>(gridDim.x)) {
    for (int depth = tile.depth; depth < tile.depth_end; depth += kDepth) {
      barrier::wait(ring.empty(state.stage), state.parity ^ 1);
      const uint32_t full = ring.full(state.stage);
      barrier::arrive_and_expect(full, GroupedShape::kStage);
      const auto copy = [&](uint32_t to, const CUtensorMap& map, int column, int row) {
        copy_tile(to, map, full, column, row, 0, 0, 0);
      };
      // An MN-major operand is one tile for each 64 columns.
      const auto copy_columns = [&](uint32_t to, const CUtensorMap& map, int columns, int column,
                                    int row) {
        for (int i = 0; i < columns / kTileColumns; ++i) {
          copy(to + static_cast<uint32_t>(i * GroupedShape::kMnTile), map,
               column + i * kTileColumns, row);
        }
      };
      if constexpr (kProduct == GroupedProduct::kWeightGradient) {
        copy_columns(ring.left(state.stage), maps.left, GroupedShape::kRows, tile.row, depth);
        copy_columns(ring.right(state.stage), maps.right, GroupedShape::kColumns, tile.column,
                     depth);
      } else {
        copy(ring.left(state.stage), maps.left, depth, tile.row);
        if constexpr (kProduct == GroupedProduct::kForward) {
          copy(ring.right(state.stage), maps.right, depth,
               tile.group * tiles.columns + tile.column);
        } else {
          copy_columns(ring.right(state.stage), maps.right, GroupedShape::kColumns, tile.column,
                       tile.group * tiles.depth + depth);
        }
      }
      state.advance();
    }
  }
}

// Zeroes the rows [first, 64) of every MN-major tile of a stage: rows of other groups.
__device__ __forceinline__ void clear_rows_behind(uint32_t stage, int first) {
  constexpr int kTiles = GroupedShape::kStage / GroupedShape::kMnTile;
  const int words = (GroupedShape::kDepth - first) * kTileRowBytes / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * words; i += GroupedShape::kConsumers) {
    store_shared(stage + static_cast<uint32_t>(i / words * GroupedShape::kMnTile +
                                               first * kTileRowBytes + i % words * 4),
                 0);
  }
  fence_shared();
  named_barrier<GroupedShape::kConsumers>(1);
}

// Where a warp's 16 rows of a tile go.
template <class Out>
struct GroupedOutput {
  Out* data;  // of the tile's matrix
  int row, end, column, columns;

  // Pair by pair, straight from the sums: for fp32, and for a beta that is neither 0 nor 1.
  __device__ __forceinline__ void add(const float (&sums)[GroupedShape::kTiles][4], float beta,
                                      int lane) const {
    const int first = column + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + lane / 4 + half * 8;
      if (r >= end) continue;
      Out* const to = data + int64_t{r} * columns + first;
      if constexpr (std::is_same_v<Out, float>) {
        if (beta == 1) {  // the sum of one thread: no wait for the old value, the same bits
#pragma unroll
          for (int t = 0; t < GroupedShape::kTiles; ++t) {
            const float pair[2] = {sums[t][2 * half], sums[t][2 * half + 1]};
            if (first + t * 8 < columns) add_to_global(reinterpret_cast<float2*>(to + t * 8), pair);
          }
          continue;
        }
      }
      float old[GroupedShape::kTiles][2] = {};
      if (beta != 0) {
#pragma unroll
        for (int t = 0; t < GroupedShape::kTiles; ++t) {
          if (first + t * 8 < columns) load(old[t], to + t * 8);
        }
      }
#pragma unroll
      for (int t = 0; t < GroupedShape::kTiles; ++t) {
        const float pair[2] = {sums[t][2 * half] + beta * old[t][0],
                               sums[t][2 * half + 1] + beta * old[t][1]};
        if (first + t * 8 < columns) store(to + t * 8, pair);
      }
    }
  }

  // Rows of 128 bytes, by way of shared memory. Added to what is there, without a wait for it, if
  // `is_added`: both the sum and what it becomes are rounded then.
  __device__ __forceinline__ void write(const float (&sums)[GroupedShape::kTiles][4], bool is_added,
                                        unsigned char* staged, int lane) const {
    static_assert(sizeof(Out) == 2);
    constexpr int kStoredTiles = GroupedShape::kStoredColumns / 8;
#pragma unroll
    for (int first = 0; first < GroupedShape::kTiles; first += kStoredTiles) {
#pragma unroll
      for (int t = 0; t < kStoredTiles; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          auto* const to = reinterpret_cast<uint32_t*>(
              staged + (lane / 4 + half * 8) * GroupedShape::kStoredRow + t * 16 + lane % 4 * 4);
          *to = pack_two<Out>(sums[first + t][2 * half], sums[first + t][2 * half + 1]);
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i * 4 + lane / 8;
        const int at = column + first * 8 + lane % 8 * 8;
        if (row + r < end && at < columns) {
          Out* const to = data + int64_t{row + r} * columns + at;
          const uint4 pack = *reinterpret_cast<const uint4*>(staged + r * GroupedShape::kStoredRow +
                                                             lane % 8 * 16);
          if (is_added) {
            add_to_global(to, pack);
          } else {
            *reinterpret_cast<uint4*>(to) = pack;
          }
        }
      }
      __syncwarp();
    }
  }
};

// The ring and the staging memory as a consumer thread sees them.
struct GroupedConsumer {
  GroupedRing ring;
  int lane, warp;
  unsigned char* staged;  // memory of the warp for GroupedOutput::write()

  // Gives a stage back to the producer.
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) barrier::arrive(ring.empty(stage));
  }
};

// Starts a block: calls consume() in the consumer warpgroups, and fills the ring in the other one.
template <GroupedProduct kProduct, class Consume>
__device__ __forceinline__ void run_grouped_block(const GroupedMaps& maps,
                                                  const GroupedTiles<kProduct>& tiles,
                                                  Consume consume) {
  using Shape = GroupedShape;
  __shared__ uint64_t barrier_words[2 * Shape::kStages];
  unsigned char* const memory = dynamic_shared_memory();
  const uint32_t begin = shared_address(memory);
  const uint32_t padding = (kTileAlignment - begin % kTileAlignment) % kTileAlignment;
  const GroupedRing ring{begin + padding, shared_address(barrier_words)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barrier::init(ring.full(stage), 1);
      barrier::init(ring.empty(stage), Shape::kConsumers / kWarp);
    }
    barrier::make_visible();
  }
  __syncthreads();

  if (threadIdx.x >= Shape::kConsumers) {
    dealloc_registers<Shape::kCopyRegisters>();
    if (threadIdx.x == Shape::kConsumers) fill_grouped_ring<kProduct>(maps, ring, tiles);
    return;
  }
  alloc_registers<Shape::kRegisters>();
  const int warp = __shfl_sync(kFullMask, static_cast<int>(threadIdx.x) / kWarp, 0);
  consume(GroupedConsumer{
      ring, static_cast<int>(threadIdx.x) % kWarp, warp,
      memory + padding + Shape::kStages * Shape::kStage + warp * 16 * Shape::kStoredRow});
}

template <class T, class Out, GroupedProduct kProduct>
__global__ void __launch_bounds__(GroupedShape::kBlock, 1)
    grouped_wgmma_kernel(const __grid_constant__ GroupedMaps maps, Out* out, float beta,
                         GroupedTiles<kProduct> tiles) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other code is empty
  using Shape = GroupedShape;
  constexpr bool kLeftIsMnMajor = kProduct == GroupedProduct::kWeightGradient;
  constexpr bool kRightIsMnMajor = kProduct != GroupedProduct::kForward;
  run_grouped_block(maps, tiles, [=](const GroupedConsumer& self) mutable {
    float sums[Shape::kTiles][4];
    PipelineState<Shape::kStages> state;
    GroupedTile tile;
    for (int number = static_cast<int>(blockIdx.x); tiles.find(number, tile);
         number += static_cast<int>(gridDim.x)) {
      if (tile.depth >= tile.depth_end) {
#pragma unroll
        for (auto& four : sums) {
#pragma unroll
          for (float& sum : four) sum = 0;
        }
      }
      int multiplied = -1;  // the stage of the product under way
      for (int depth = tile.depth; depth < tile.depth_end; depth += Shape::kDepth) {
        const int stage = state.stage;
        barrier::wait(self.ring.full(stage), state.parity);
        if constexpr (kProduct == GroupedProduct::kWeightGradient) {
          const int rows = tile.depth_end - depth;
          if (rows < Shape::kDepth) clear_rows_behind(self.ring.left(stage), rows);
        }
        const uint32_t left_tile =
            self.ring.left(stage) + static_cast<uint32_t>(self.warp / 4 * 64 * kTileRowBytes);
        const MatrixDescriptor left =
            kLeftIsMnMajor ? mn_major_matrix(left_tile, Shape::kMnTile) : k_major_matrix(left_tile);
        const MatrixDescriptor right = kRightIsMnMajor
                                           ? mn_major_matrix(self.ring.right(stage), Shape::kMnTile)
                                           : k_major_matrix(self.ring.right(stage));
        fence_operand(sums);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Shape::kDepth / 16; ++step) {
          wgmma<T, kLeftIsMnMajor, kRightIsMnMajor>(
              sums, left.after(kLeftIsMnMajor ? mn_major_step(step) : k_major_step(step, 0)),
              right.after(kRightIsMnMajor ? mn_major_step(step) : k_major_step(step, 0)),
              step > 0 || depth > tile.depth);
        }
        wgmma_commit();
        if (multiplied >= 0) {
          wgmma_wait<1>();
          self.release(multiplied);
        }
        multiplied = stage;
        state.advance();
      }
      wgmma_wait<0>();
      fence_operand(sums);
      if (multiplied >= 0) self.release(multiplied);

      GroupedOutput<Out> output{out, tile.row + self.warp * 16, tile.end, tile.column,
                                tiles.columns};
      if constexpr (kProduct == GroupedProduct::kWeightGradient) {
        output.data += int64_t{tile.group} * tiles.rows * tiles.columns;
      }
      if constexpr (sizeof(Out) == 2) {
        if (beta == 0 || beta == 1) {
          output.write(sums, beta == 1, self.staged, self.lane);
          continue;
        }
      }
      output.add(sums, beta, self.lane);
    }
  });
#endif
}

}  // namespace megatron::kernels::cuda
