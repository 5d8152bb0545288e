#pragma once

#include "megatron/kernels/cuda/wgmma_forward_ring.cuh"

// FlashAttention-3's forward pass (Shah et al. 2024, arXiv:2407.08608, alg. 1 and 2) for compute
// capability 9.0a. Warp-specialized: a producer warp loads tiles of keys and values; each of
// kGroups consumer warpgroups has 64 queries. Products of one group overlap with the softmax of
// another.
namespace megatron::kernels::cuda {

template <class T, class Shape, bool kHasDropout>
__global__ void __launch_bounds__(Shape::kBlock, Shape::kBlocks)
    wgmma_forward_kernel(const __grid_constant__ ForwardMaps maps, ForwardGroups groups,
                         DeviceHeads<T> out, float* lse, const __grid_constant__ Problem p) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other code is empty
  __shared__ uint64_t barrier_words[ForwardBarriers<Shape>::kCount];
  const ForwardBarriers<Shape> barriers{shared_address(barrier_words)};
  const ForwardTiles<Shape> tiles(dynamic_shared_memory());
  const LaneCoordinate at;
  const QueryWorkTile work(p, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  const int first_query = work.tile * Shape::kQueries - queries_before_first(p);
  const KeyTileRange range(
      visible_keys<Shape::kQueries, false>(p, work.batch, first_query, at.lane), Shape::kKeys);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  if (threadIdx.x >= Shape::kGroups * kWarpgroup) {
    dealloc_registers<Shape::kCopyRegisters>();
    if (at.warp == Shape::kGroups * 4) {
      fill_forward_ring<Shape, kHasDropout>(maps, groups, barriers, tiles, range, work, first_query,
                                            p, at);
    }
    return;
  }
  alloc_registers<Shape::kRegisters>();

  const int own_group = __shfl_sync(kFullMask, at.warp / 4, 0);  // uniform for the compiler
  const int group_query = first_query + own_group * 64;
  const int query = first_query + at.warp * kUnit;  // the warp's first
  KeyTileRange own_range(visible_keys<64, false>(p, work.batch, group_query, at.lane),
                         Shape::kKeys);
  const bool has_tiles = group_query < p.sq && own_range.first < own_range.last;
  if (!has_tiles) own_range.first = own_range.last = range.last;
  const VisibleKeys own =
      query < p.sq ? visible_keys<kUnit, false>(p, work.batch, query, at.lane) : VisibleKeys{};
  const float slope = p.slope(work.head);

  OnlineSoftmax<Shape> softmax;
  float x[1][Shape::kKeyTiles][4];
  uint32_t left[Shape::kKeySteps][4];  // probabilities, rounded
  PipelineState<Shape::kStages> k_state;
  PipelineState<Shape::kStages> v_state;
  const auto wait_for_keys = [&] { barrier::wait(barriers.k_full(k_state.stage), k_state.parity); };
  const auto wait_for_values = [&] {
    barrier::wait(barriers.v_full(v_state.stage), v_state.parity);
  };
  const auto release_keys = [&] {
    if constexpr (kHasDropout) __syncwarp();  // all lanes have read the columns
    if (at.lane == 0) barrier::arrive(barriers.k_empty(k_state.stage));
    k_state.advance();
  };
  // Dropout reads a stage's columns after the product with its keys.
  const auto release_multiplied_keys = [&] {
    if constexpr (!kHasDropout) release_keys();
  };
  const auto release_dropped_keys = [&] {
    if constexpr (kHasDropout) release_keys();
  };
  const auto release_values = [&] {
    if (at.lane == 0) barrier::arrive(barriers.v_empty(v_state.stage));
    v_state.advance();
  };
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) {
      wait_for_keys();
      wait_for_values();
      __syncwarp();  // a lane that still waits could miss a phase
      release_keys();
      release_values();
    }
  };

  // Starts x = q k^T.
  const MatrixDescriptor q_matrix =
      k_major_matrix(tiles.q + static_cast<uint32_t>(own_group * 64 * kTileRowBytes));
  const auto multiply_keys = [&] {
    const MatrixDescriptor k_matrix = k_major_matrix(tiles.keys_of(k_state.stage));
    fence_operand(x[0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Shape::kSteps; ++step) {
      wgmma<T, false, false>(x[0], q_matrix.after(k_major_step(step, Shape::kQueryTile)),
                             k_matrix.after(k_major_step(step, Shape::kKeyTile)), step > 0);
    }
    wgmma_commit();
  };
  // Starts sums += probabilities v.
  const auto multiply_values = [&] {
    const MatrixDescriptor v_matrix =
        mn_major_matrix(tiles.values_of(v_state.stage), Shape::kKeyTile);
    fence_operand(softmax.sums[0]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Shape::kKeySteps; ++step) {
      wgmma<T, true>(softmax.sums[0], left[step], v_matrix.after(mn_major_step(step)));
    }
    wgmma_commit();
  };
  using PaddingBits = KeyPaddingBits<Shape::kKeys / kWarp>;
  const auto exponentiate = [&](int key, const PaddingBits& padding) {
    return softmax.exponentiate(
        x, bias_and_mask_rows<Shape, false>(x, p, own, padding, work.batch, slope, nullptr, query,
                                            key, at));
  };
  const DropoutHead dropout(p, work.batch, work.head);
  const auto dropout_row = static_cast<uint32_t>((p.first_position + query) / 16 * 8 + at.row);
  const DropoutRow row_words =
      dropout_row_words(dropout.first_row + dropout_row, dropout.sample, p.dropout_keys);
  const PairDropper dropper(p.keep_threshold);
  const auto round = [&] {
#pragma unroll
    for (int step = 0; step < Shape::kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = x[0][2 * step + i / 2];
        left[step][i] = pack_two<T>(four[i % 2 * 2], four[i % 2 * 2 + 1]);
      }
    }
    if constexpr (kHasDropout) {
      const DropoutColumn* const columns = tiles.columns_of(k_state.stage) + at.column;
#pragma unroll
      for (int step = 0; step < Shape::kKeySteps; step += 2) {
        dropper.drop(left[step], left[step + 1],
                     dropout_words(columns[step / 2 * 8], row_words, p.dropout_keys),
                     dropout_words(columns[step / 2 * 8 + 1], row_words, p.dropout_keys));
      }
    }
  };

  barrier::wait(barriers.q(), 0);
  skip(own_range.first - range.first);
  if (has_tiles && !Shape::kStartsAhead) {
    for (int i = own_range.first; i < own_range.last; ++i) {
      const int key = i * Shape::kKeys;
      wait_for_keys();
      multiply_keys();
      const PaddingBits padding(p, work.batch, key, at.lane);
      wgmma_wait<0>();
      fence_operand(x[0]);
      release_multiplied_keys();
      softmax.rescale(exponentiate(key, padding));
      round();
      release_dropped_keys();
      wait_for_values();
      multiply_values();
      wgmma_wait<0>();
      fence_operand(softmax.sums[0]);
      release_values();
    }
  }
  if (has_tiles && Shape::kStartsAhead) {
    {
      const int key = own_range.first * Shape::kKeys;
      wait_for_keys();
      multiply_keys();
      const PaddingBits padding(p, work.batch, key, at.lane);
      wgmma_wait<0>();
      fence_operand(x[0]);
      release_multiplied_keys();
      exponentiate(key, padding);
      round();
      release_dropped_keys();
    }
    for (int i = own_range.first + 1; i < own_range.last; ++i) {
      const int key = i * Shape::kKeys;
      wait_for_keys();
      multiply_keys();
      wait_for_values();
      multiply_values();
      const PaddingBits padding(p, work.batch, key, at.lane);
      wgmma_wait<1>();
      fence_operand(x[0]);
      release_multiplied_keys();
      const auto shrink = exponentiate(key, padding);
      wgmma_wait<0>();
      fence_operand(softmax.sums[0]);
      release_values();
      softmax.rescale(shrink);
      round();
      release_dropped_keys();
    }
    wait_for_values();
    multiply_values();
    wgmma_wait<0>();
    fence_operand(softmax.sums[0]);
    release_values();
  }
  skip(range.last - own_range.last);

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int own_query = query + at.row + h * 8;
    float total = row_sum(softmax.total[0][h]);
    if (own_query < 0 || own_query >= p.sq) continue;
    const float shrink = add_sink(total, softmax.largest[0][h], p, work.head);
    const bool is_fully_masked = total == 0;  // false for NaN
    if (lse != nullptr && at.column == 0) {
      lse[int64_t{work.pair} * p.sq + own_query] =
          is_fully_masked ? infinity() : (softmax.largest[0][h] + log2f(total)) * kLn2;
    }
    const float factor = is_fully_masked ? 0.0f : shrink * p.kept / total;
    T* const to = out.row(work.batch, work.head, own_query);
#pragma unroll
    for (int t = 0; t < Shape::kChannelTiles; ++t) {
      const float(&four)[4] = softmax.sums[0][t];
      store_two(to, t * 8 + at.column, p.d, four[2 * h] * factor, four[2 * h + 1] * factor);
    }
  }
#endif
}

}  // namespace megatron::kernels::cuda
