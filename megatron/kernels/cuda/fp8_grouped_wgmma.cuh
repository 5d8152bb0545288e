#pragma once

#include "megatron/kernels/cuda/grouped_wgmma.cuh"

// Products of grouped rows in FP8 (fp8_grouped_matmul.h) with the blocks, tiles and ring of
// grouped_wgmma.cuh: maps, tiles and descriptors take two elements as one of 16 bits, so that a
// stage has 128 of them along the depth.
namespace megatron::kernels::cuda {

struct GroupedScales {
  const float* rows;      // [r]
  const float* matrices;  // [E]
};

// Tensor cores add up the 128 terms of a stage, for half of a tile's columns at a time, and the sum
// goes on in fp32: one warpgroup adds while the other one multiplies. Left is the type of x.
template <class Left, class Out>
__global__ void __launch_bounds__(GroupedShape::kBlock, 1)
    fp8_grouped_kernel(const __grid_constant__ GroupedMaps maps, Out* out, GroupedScales scales,
                       GroupedTiles<GroupedProduct::kForward> tiles) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other code is empty
  using Shape = GroupedShape;
  constexpr int kHalf = Shape::kTiles / 2;
  run_grouped_block(maps, tiles, [=](const GroupedConsumer& self) mutable {
    float sums[Shape::kTiles][4];
    PipelineState<Shape::kStages> state;
    GroupedTile tile;
    for (int number = static_cast<int>(blockIdx.x); tiles.find(number, tile);
         number += static_cast<int>(gridDim.x)) {
#pragma unroll
      for (auto& four : sums) {
#pragma unroll
        for (float& sum : four) sum = 0;
      }
      for (int depth = tile.depth; depth < tile.depth_end; depth += Shape::kDepth) {
        const int stage = state.stage;
        barrier::wait(self.ring.full(stage), state.parity);
        const MatrixDescriptor left = k_major_matrix(
            self.ring.left(stage) + static_cast<uint32_t>(self.warp / 4 * 64 * kTileRowBytes));
        const MatrixDescriptor right = k_major_matrix(self.ring.right(stage));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float part[kHalf][4];
          fence_operand(part);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < Shape::kDepth / 16; ++step) {
            wgmma_fp8<Left>(part, left.after(k_major_step(step, 0)),
                            right.after(half * Shape::kRight / 2 + k_major_step(step, 0)),
                            step > 0);
          }
          wgmma_commit();
          wgmma_wait<0>();
          fence_operand(part);
          if (half == 1) self.release(stage);
#pragma unroll
          for (int t = 0; t < kHalf; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[half * kHalf + t][i] += part[t][i];
          }
        }
        state.advance();
      }

      const GroupedOutput<Out> output{out, tile.row + self.warp * 16, tile.end, tile.column,
                                      tiles.columns};
      float factors[2] = {};  // rows of other tiles are not written
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = output.row + self.lane / 4 + half * 8;
        if (tile.group < tiles.groups && row < tile.end) {
          factors[half] = scales.rows[row] * scales.matrices[tile.group];
        }
      }
#pragma unroll
      for (auto& four : sums) {
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] *= factors[i / 2];
      }
      output.write(sums, false, self.staged, self.lane);
    }
  });
#endif
}

}  // namespace megatron::kernels::cuda
