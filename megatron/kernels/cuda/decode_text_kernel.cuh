#pragma once

#include <bit>

#include "megatron/kernels/cuda/decode_text_attention.cuh"
#include "megatron/kernels/cuda/decode_text_common.cuh"
#include "megatron/kernels/cuda/decode_text_division.h"
#include "megatron/kernels/cuda/decode_text_epilogue.cuh"
#include "megatron/kernels/cuda/decode_text_experts.cuh"
#include "megatron/kernels/cuda/decode_text_mma.cuh"

// The kernel decode_text and its parameters.
namespace megatron::kernels::cuda::text {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // other code has an empty kernel

__device__ inline RowRange row_range(int64_t rows, unsigned block) {
  const auto begin = static_cast<int>(rows * block / gridDim.x);
  const auto end = static_cast<int>(rows * (block + 1) / gridDim.x);
  return {begin, end - begin};
}
// Plans a block's part of a product. The quarter rotates the blocks that get an additional row from
// matrix to matrix. fc2 has proj's rows, to whose residual sums its results are added.
__device__ inline BlockProduct block_product(const Parameters& p, int product) {
  const DecodeTextShape& s = p.shape;
  const auto rows = [&](int64_t all, unsigned quarter) {
    return row_range(all, (blockIdx.x + gridDim.x * quarter / 4) % gridDim.x);
  };
  BlockProduct b{};
  b.halves = 1;
  b.depth = static_cast<int>(s.hidden);
  b.input = p.offsets.x;
  if (product == kQkv) {
    b.rows = rows((s.heads + 2 * s.groups) * s.d, 0);
    b.output = p.offsets.qkv;
  } else if (product == kProj) {
    b.rows = rows(s.hidden, 1);
    b.depth = static_cast<int>(s.heads * s.d);
    b.input = p.offsets.attention;
    b.output = p.offsets.middle;
  } else if (product == kRouter) {
    b.rows = rows(s.experts, 0);
    b.input = p.offsets.middle;
  } else if (product == kFc1) {
    b.rows = rows(inner_of(s), 2);
    b.halves = is_gated(s.activation) ? 2 : 1;
    b.input = p.offsets.middle;
    b.output = p.offsets.activated;
  } else if (product == kFc2) {
    b.rows = rows(s.hidden, 1);
    b.depth = static_cast<int>(inner_of(s));
    b.input = p.offsets.activated;
    b.output = p.offsets.x;
  } else {
    b.rows = rows(s.vocabulary, 0);
  }
  b.at_once = product == kLogits ? kHeadRows : b.rows.count;
  b.pieces = b.depth / p.columns / kGroups;
  return b;
}

__device__ __forceinline__ const void* weight_of(const Parameters& p, const DecodeTextLayer& layer,
                                                 int product) {
  return product == kQkv      ? layer.qkv_weight
         : product == kProj   ? layer.proj_weight
         : product == kFc1    ? layer.fc1_weight
         : product == kFc2    ? layer.fc2_weight
         : product == kLogits ? p.head_weight
                              : layer.router_weight;
}
// Producer warp: copies the block's rows of all weights into the ring, in the order of their use.
// With experts, rows of fc1 and columns of fc2 are those of the chosen ones, one after the other.
template <class T>
__device__ inline void copy_weights(const Parameters& p, const SharedMemory& shared,
                                    WeightRing ring, uint32_t first_tag) {
  const auto ffn = static_cast<int>(p.shape.ffn);
  const int64_t fc2_elements = p.shape.hidden * p.shape.ffn;
  const ChosenExperts& chosen = *shared.chosen;
#pragma unroll 1
  for (ProductOrder order{p};; order.advance()) {
    const int product = order.product;
    const BlockProduct& own = shared.plan[product];
    const DecodeTextLayer& layer = shared.layers[order.layer_or_first()];
    const bool has_rows_of_experts = product == kFc1 && order.has_experts();
    const bool has_columns_of_experts = product == kFc2 && order.has_experts();
    if (has_rows_of_experts) {
      choose_experts<T>(p, shared, layer.expert_bias, order.layer,
                        first_tag + static_cast<uint32_t>(order.layer));
    }
    const auto* const weight = static_cast<const char*>(weight_of(p, layer, product));
    const int64_t depth = has_columns_of_experts ? ffn : own.depth;
#pragma unroll 1
    for (int first = 0; first < own.rows.count; first += own.at_once) {
      const int count = min(own.at_once, own.rows.count - first);
#pragma unroll 1
      for (int half = 0; half < own.halves; ++half) {
        const auto row_at = [&](int row) {
          int64_t row_of_all = row + half * ffn;
          if (has_rows_of_experts) {
            const int choice = row / ffn;
            const int64_t id = chosen.ids[choice];
            row_of_all = (id * own.halves + half) * ffn + (row - choice * ffn);
          }
          return weight + row_of_all * depth * 2;
        };
        const auto column_offset = [&](int column) {
          if (!has_columns_of_experts) return int64_t{column} * 2;
          const int choice = column / ffn;
          return (chosen.ids[choice] * fc2_elements + (column - choice * ffn)) * 2;
        };
        ring.fill(row_at, column_offset, {own.rows.begin + first, count}, own.depth);
      }
    }
    if (product == kLogits) break;
  }
}

#endif

template <class T, int kHead, class Size>
__global__ void __launch_bounds__(kBlockThreads, 1)
    decode_text_kernel(const __grid_constant__ Parameters p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __shared__ uint64_t barriers[2 * kMaxRingSlots], products_full[2], products_empty[2];
  __shared__ uint64_t router_started;
  __shared__ WarpMoments moments[2 * kMmaWarps];
  __shared__ int tuned[kSearched];
  __shared__ typename DecodeAttention<T, kHead>::Memory attention_memory;
  __shared__ BlockProduct plan[kLogits + 1];
  const DecodeTextShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;

  unsigned char* const slots = dynamic_memory();
  WeightRing ring{.full = shared_address(barriers),
                  .empty = shared_address(barriers + p.slots),
                  .data = shared_address(slots),
                  .slots = p.slots,
                  .columns = p.columns,
                  .tile_rows = p.tile_rows,
                  .row_bytes = p.row_bytes,
                  .slot_bytes = p.slot_bytes};
  auto* const layers = reinterpret_cast<DecodeTextLayer*>(slots + p.slots * p.slot_bytes);
  auto* const chosen = reinterpret_cast<ChosenExperts*>(layers + s.layers);
  auto* const products = reinterpret_cast<float*>(chosen + (s.experts > 0 ? 1 : 0));
  const SharedMemory shared{
      .layers = layers,
      .plan = plan,
      .input = reinterpret_cast<uint32_t*>(products + (2 * kMmaWarps + 2) * p.part_rows),
      .products = products,
      .residual = products + 2 * kMmaWarps * p.part_rows,
      .biases = products + (2 * kMmaWarps + 1) * p.part_rows,
      .moments = moments,
      .chosen = chosen,
      .tuned = tuned,
      .products_full = products_full,
      .products_empty = products_empty,
      .router_started = &router_started};

  const auto words = static_cast<int>(s.layers * static_cast<int64_t>(sizeof(DecodeTextLayer)) / 8);
  for (int i = thread; i < words; i += kBlockThreads) {
    reinterpret_cast<uint64_t*>(layers)[i] = reinterpret_cast<const uint64_t*>(p.layers)[i];
  }
  if (thread == 0) {
    for (int i = 0; i < p.slots; ++i) {
      barrier::init(ring.full + static_cast<uint32_t>(i) * 8, 1);
      barrier::init(ring.empty + static_cast<uint32_t>(i) * 8, kGroupWarps);
    }
    for (int i = 0; i < 2; ++i) {
      barrier::init(shared_address(products_full + i), kMmaWarps);
      barrier::init(shared_address(products_empty + i), 1);
    }
    barrier::init(shared_address(&router_started), 1);
    barrier::make_visible();
    attention_memory.work = head_split_of_block(p);
  }
  if (thread < kSearched) {
    tuned[thread] = search_of(p)->value(thread) + (p.waits_for_memory ? extra_wait(thread) : 0);
  }
  if (thread >= kWarp && thread <= kWarp + kLogits) {
    plan[thread - kWarp] = block_product(p, thread - kWarp);
  }
  const uint32_t start = cycles_now();
  const uint32_t tag = load_relaxed(p.words).x + 1;
  __syncthreads();
  if (warp < kMmaWarps) {
    MmaWarp<T, Size> mma_warp(p, shared, ring, warp, lane);
    mma_warp.template run<kHead>(tag, attention_memory);
    // All blocks have read the first tag and the tuned values: this one has received elements of
    // each.
    if (blockIdx.x == 0 && thread == 0) {
      p.words[0] = tag + static_cast<uint32_t>(s.layers);
      search_of(p)->learn(cycles_now() - start);
    }
  } else if (warp == kMmaWarps) {
    ring.in_flight = max(1, min(p.in_flight + tuned[kMoreInFlight], p.slots - 1));
    copy_weights<T>(p, shared, ring, tag);
  } else {
    EpilogueWarp<T>{.p = p, .s = s, .shared = shared, .lane = lane}.run(tag);
  }
#endif
}

using Kernel = void (*)(Parameters);
template <class T, int kHead>
Kernel kernel_of(const DecodeTextShape& s, int64_t columns) {
  if (has_room<NarrowSlots>(columns, s.hidden)) return decode_text_kernel<T, kHead, NarrowSlots>;
  if (has_room<SomeColumns>(columns, s.hidden)) return decode_text_kernel<T, kHead, SomeColumns>;
  if (has_room<FewColumns>(columns, s.hidden)) return decode_text_kernel<T, kHead, FewColumns>;
  if (has_room<ManyColumns>(columns, s.hidden)) return decode_text_kernel<T, kHead, ManyColumns>;
  return decode_text_kernel<T, kHead, ManyPieces>;
}
template <class T>
Kernel kernel_of_type(const DecodeTextShape& s, int64_t columns) {
  return s.d == 64 ? kernel_of<T, 64>(s, columns) : kernel_of<T, 128>(s, columns);
}
inline Kernel kernel_of(const DecodeTextShape& s, int64_t columns) {
  return s.dtype == DType::kBFloat16 ? kernel_of_type<BFloat16>(s, columns)
                                     : kernel_of_type<Float16>(s, columns);
}

inline Parameters parameters_of(TensorView logits, ConstView x, const DecodeText& text,
                                ConstView pages, ConstView length, int64_t max_length,
                                TensorView workspace, const Division& division) {
  const DecodeTextShape& s = text.shape;
  const auto splits = static_cast<int>(splits_of(s, division.blocks, max_length));
  return {.shape = s,
          .layers = static_cast<const DecodeTextLayer*>(text.layers.data),
          .final_norm_weight = text.final_norm_weight,
          .final_norm_bias = text.final_norm_bias,
          .head_weight = text.head_weight,
          .rotary_table = static_cast<const float*>(text.rotary_table.data),
          .rotary_dim =
              text.rotary_table.data == nullptr ? 0 : static_cast<int>(text.rotary_table.size(1)),
          .rotary_pairs = text.rotary_pairs,
          .x = x.data,
          .logits = logits.data,
          .pages = static_cast<const int32_t*>(pages.data),
          .page_shift = std::countr_zero(static_cast<uint64_t>(s.page_tokens)),
          .length = static_cast<const int32_t*>(length.data),
          .words = static_cast<Word*>(workspace.data),
          .offsets = workspace_offsets(s, splits),
          .splits = splits,
          .columns = static_cast<int>(division.columns),
          .tile_rows = static_cast<int>(division.tile_rows),
          .row_bytes = row_bytes_of(static_cast<int>(division.columns)),
          .slot_bytes = static_cast<int>(division.slot_bytes),
          .slots = static_cast<int>(division.slots),
          .in_flight = static_cast<int>(division.in_flight),
          .part_rows = static_cast<int>(division.part_rows),
          .waits_for_memory = division.waits_for_memory,
          .choice = ChoiceRule({}, s.router, s.topk),
          .weights = WeightRule(s.router, s.topk)};
}

}  // namespace megatron::kernels::cuda::text
