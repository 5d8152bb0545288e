#pragma once

#include "megatron/kernels/cuda/wgmma_backward_ring.cuh"

// The backward pass of tensor_attention_backward.cu for compute capability 9.0a: the same tiles,
// order and scratch memory. The kernel is persistent: a block takes one work tile, a key tile,
// after the other. With one block for each, a work tile took 2.4 us longer (of 23, 1024 tokens,
// heads of 64 channels, one H200). Warp-specialized: a producer warp copies tiles, and another warp
// acquires and releases the block's turns to add to dq. Each of two consumer warpgroups has 64 of
// the 128 keys. They exchange score gradients through shared memory: each group multiplies those of
// all keys for its half of the channels of dq.
namespace megatron::kernels::cuda {

template <class T, class Shape, bool kHasDropout>
__global__ void __launch_bounds__(Shape::kBlock, 1)
    wgmma_backward_kernel(const __grid_constant__ BackwardMaps maps, BackwardGroups groups,
                          DeviceHeads<T> dq, DeviceHeads<T> dk, DeviceHeads<T> dv,
                          BackwardScratch scratch, const __grid_constant__ Problem p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other code is empty
  __shared__ uint64_t barrier_words[BackwardBarriers<Shape>::kCount];
  __shared__ BackwardStep steps[Shape::kStages];
  __shared__ int own_ticket;
  const BackwardBarriers<Shape> barriers{shared_address(barrier_words)};
  const BackwardTiles<Shape> tiles(dynamic_shared_memory());
  const LaneCoordinate at;
  if (threadIdx.x == 0) {
    own_ticket = atomicAdd(scratch.ticket, 1);
    barriers.init();
  }
  __syncthreads();
  if (at.warp >= Shape::kWarps) {
    dealloc_registers<Shape::kCopyRegisters>();
    if (at.warp == Shape::kWarps) {
      fill_backward_ring<Shape, kHasDropout>(maps, groups, barriers, tiles, steps, own_ticket,
                                             scratch, p, at);
    }
    if (at.warp == Shape::kWarps + 1 && at.lane == 0) {
      wait_for_turns(barriers, steps, own_ticket, scratch, p);
    }
    return;
  }
  alloc_registers<Shape::kRegisters>();

  const int group = __shfl_sync(kFullMask, at.warp / 4, 0);  // uniform for the compiler
  const auto group_rows = static_cast<uint32_t>(group * 64 * kTileRowBytes);
  // Starts x = keys queries^T.
  const auto multiply_rows = [&](Scores<Shape>& x, MatrixDescriptor keys,
                                 MatrixDescriptor queries) {
    fence_operand(x[0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      wgmma<T, false, false>(x[0], keys.after(k_major_step(step, Shape::kKeyTile)),
                             queries.after(k_major_step(step, Shape::kQueryTile)), step > 0);
    }
    wgmma_commit();
  };
  using Left = uint32_t[Shape::kUnits][Shape::kChunkSteps][4];
  // Starts sums += left queries.
  const auto add_queries = [&](float(&sums)[Shape::kChannelTiles][4], const Left& left,
                               MatrixDescriptor queries) {
    fence_operand(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Shape::kChunkSteps; ++step) {
      wgmma<T, true>(sums, left[0][step], queries.after(mn_major_step(step)));
    }
    wgmma_commit();
  };

  const BackwardWorkTiles work_tiles(p, Shape::kKeys);
  PipelineState<Shape::kStages> state;
  PipelineState<Shape::kKeyStages> keys_state;
  int ds_tile = 0;
  uint32_t turn_parity = 0;
  for (int ticket = own_ticket; ticket < work_tiles.count;) {
    const WorkTile work(p, ticket, work_tiles.tiles);
    const int warp_key = work.tile * Shape::kKeys + at.warp * Shape::kWarpKeys;
    const KeyPaddingBits<1> padding(p, work.batch, warp_key, at.lane);
    const DropoutColumn column = dropout_column_words(
        static_cast<uint32_t>((p.key_offset + warp_key) / kDropoutKeys * 8 + at.row),
        p.dropout.sample(work.batch), p.dropout_keys);
    const uint32_t k_tile = tiles.k(keys_state.stage);
    const uint32_t v_tile = tiles.v(keys_state.stage);
    // The group's half of the key channels, for dq: one of two tiles, or half of a tile.
    const uint32_t k_part =
        k_tile + static_cast<uint32_t>(group * (Shape::kIsWide ? Shape::kKeyTile : 64));
    float dk_sums[1][Shape::kChannelTiles][4] = {};
    float dv_sums[1][Shape::kChannelTiles][4] = {};
    barrier::wait(barriers.keys_full(keys_state.stage), keys_state.parity);
    for (;; state.advance(), ds_tile ^= 1, turn_parity ^= 1) {
      const int stage = state.stage;
      barrier::wait(barriers.full(stage), state.parity);
      const BackwardStep step = steps[stage];
      if (step.head == BackwardStep::kNoHead) {
        ticket = step.tile;
        break;
      }
      const int query = step.tile * kTileQueries - queries_before_first(p);

      Scores<Shape> x;
      Scores<Shape> dp;
      multiply_rows(x, k_major_matrix(k_tile + group_rows), k_major_matrix(tiles.q(stage)));
      multiply_rows(dp, k_major_matrix(v_tile + group_rows), k_major_matrix(tiles.dout(stage)));
      const DropoutHead dropout(p, work.batch, step.head);
      wgmma_wait<1>();
      fence_operand(x[0]);
      const VisibleKeys chunk{.first = 0,
                              .last = p.last_key(query + kTileQueries - 1),
                              .unmasked_first = step.unmasked_first,
                              .unmasked_last = p.last_key(query)};
      const float factor = bias_and_mask_columns<Shape, false>(
          x, p, chunk, padding, work.batch, p.slope(step.head), nullptr, query, warp_key, at);
      wgmma_wait<0>();
      fence_operand(dp[0]);
      Left kept;
      Left ds;
      Diagonals<Shape> diagonals;
      const DropoutRow* const rows = tiles.rows(stage) + at.column;
      differentiate<T, Shape, kHasDropout, false>(
          kept, ds, diagonals, x, dp, factor, tiles.statistics(stage), dropout,
          [&](int i, int c) { return dropout_words(column, rows[i * 8 + c], p.dropout_keys); },
          p.key_offset + warp_key, 0.0f, at);
      add_queries(dv_sums[0], kept, mn_major_matrix(tiles.dout(stage), Shape::kQueryTile));
      add_queries(dk_sums[0], ds, mn_major_matrix(tiles.q(stage), Shape::kQueryTile));
#pragma unroll
      for (int t = 0; t < Shape::kChunkTiles; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = at.warp * Shape::kWarpKeys + at.row + h * 8;
          store_shared(tiles.ds(ds_tile) + tile_part(row, t) + static_cast<uint32_t>(at.column * 2),
                       ds[0][t / 2][t % 2 * 2 + h]);
        }
      }
      fence_shared();

      // Score gradients of all warps are visible after this barrier. The other ds tile is free:
      // each group waited for its products with it before it arrived here.
      named_barrier<Shape::kConsumers>(1);
      float part[Shape::kSumTiles][4];  // this block's contribution to a dq tile
      const MatrixDescriptor ds_matrix = mn_major_matrix(tiles.ds(ds_tile), 0);
      const MatrixDescriptor k_matrix = mn_major_matrix(k_part, 0);
      fence_operand(part);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < Shape::kKeySteps; ++i) {
        wgmma<T, true, true>(part, ds_matrix.after(mn_major_step(i)),
                             k_matrix.after(mn_major_step(i)), i > 0);
      }
      wgmma_commit();

      const int64_t query_tile = (work.batch * p.heads + step.head) * scratch.tiles + step.tile;
      float4* const partial = scratch.sums +
                              (query_tile * Shape::kWarps + at.warp) * (Shape::kSumTiles * kWarp) +
                              at.lane;
      barrier::wait(barriers.turn(), turn_parity);
      wgmma_wait<0>();
      fence_operand(part);
      fence_operand(dk_sums[0]);
      fence_operand(dv_sums[0]);
      __syncwarp();  // all lanes have read the statistics
      if (at.lane == 0) barrier::arrive(barriers.empty(stage));
      if (!step.is_last && step.before > 0) {
#pragma unroll
        for (int t = 0; t < Shape::kSumTiles; ++t) add_to_global(partial + t * kWarp, part[t]);
      } else if (!step.is_last) {
#pragma unroll
        for (int t = 0; t < Shape::kSumTiles; ++t) {
          __stcg(partial + t * kWarp, make_float4(part[t][0], part[t][1], part[t][2], part[t][3]));
        }
      } else {
#pragma unroll
        for (int t = 0; t < Shape::kSumTiles && step.before > 0; ++t) {
          const float4 earlier = __ldcg(partial + t * kWarp);
          part[t][0] += earlier.x;
          part[t][1] += earlier.y;
          part[t][2] += earlier.z;
          part[t][3] += earlier.w;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int own = query + at.warp % 4 * kUnit + at.row + h * 8;
          if (own < 0 || own >= p.sq) continue;
          T* const row = dq.row(work.batch, step.head, own);
          const float dq_factor = p.scale * p.kept;
#pragma unroll
          for (int t = 0; t < Shape::kSumTiles; ++t) {
            const int c = group * Shape::kChannels / 2 + t * 8 + at.column;
            store_two(row, c, p.d, part[t][2 * h] * dq_factor, part[t][2 * h + 1] * dq_factor);
          }
        }
      }
      __syncwarp();  // all lanes have added
      if (at.lane == 0) barrier::arrive(barriers.added());
    }

    __syncwarp();  // all lanes have read the step
    if (at.lane == 0) {
      barrier::arrive(barriers.empty(state.stage));
      barrier::arrive(barriers.keys_empty(keys_state.stage));
    }
    state.advance();
    keys_state.advance();
    store_keys<T, Shape>(dk, work, p, dk_sums, p.scale * p.kept, warp_key, at);
    store_keys<T, Shape>(dv, work, p, dv_sums, p.kept, warp_key, at);
  }
#endif
}

}  // namespace megatron::kernels::cuda
