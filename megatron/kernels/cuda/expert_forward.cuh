#pragma once

#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/decode_text_instructions.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/expert_forward.h"

// The kernels of expert_forward(): each warp multiplies 16 rows of a matrix, or 16 pairs of rows of
// a gated one, by the vectors of up to 8 kTiles slots. Weights go from global memory to the tensor
// cores in registers; enough of them are in flight to saturate memory.
namespace megatron::kernels::cuda::experts {

inline constexpr int kRows = 16;      // of a matrix: those of a tensor-core instruction
inline constexpr int kDepths = 32;    // of a chunk: 16 bytes on each of four lanes
inline constexpr int kTileSlots = 8;  // columns of a tensor-core instruction
inline constexpr int kMostSlots = kMaxForwardSlots;
inline constexpr int kMostExperts = 512;  // of a layer
inline constexpr int kUpWarps = 8, kDownWarps = 16;
inline constexpr int kMostParts = kMostSlots;  // of the down kernel: splits times slots

struct Problem {
  const void *x, *fc1, *fc1_bias, *fc2, *fc2_bias;
  const int* ids;  // [slots]
  const float* weights;
  void *inside, *y;
  int tokens, k, experts, first_expert, hidden, inner;
  Activation activation;
  bool is_gated, weighs_input;

  __device__ __forceinline__ int slots() const { return tokens * k; }
};

inline Problem problem_of(TensorView y, TensorView inside, ConstView x, ConstView ids,
                          ConstView weights, const ExpertLayers& layers) {
  return {.x = x.data,
          .fc1 = layers.fc1.data,
          .fc1_bias = layers.fc1_bias.data,
          .fc2 = layers.fc2.data,
          .fc2_bias = layers.fc2_bias.data,
          .ids = ids.as<int32_t>(),
          .weights = weights.as<float>(),
          .inside = inside.data,
          .y = y.data,
          .tokens = static_cast<int>(ids.size(0)),
          .k = static_cast<int>(ids.size(1)),
          .experts = static_cast<int>(layers.fc2.size(0)),
          .first_expert = static_cast<int>(layers.first_expert),
          .hidden = static_cast<int>(x.size(1)),
          .inner = static_cast<int>(layers.fc2.size(2)),
          .activation = layers.activation,
          .is_gated = is_gated(layers.activation),
          .weighs_input = layers.weighs_input};
}

// The experts that the tokens chose, in shared memory.
struct Chosen {
  int count;
  int16_t of_slot[kMostSlots];  // counted from first_expert; -1: none of this rank's
  int16_t experts[kMostExperts];
  uint8_t is_chosen[kMostExperts];
};

// Fills `chosen`. All threads of the block call it.
__device__ __forceinline__ void find_chosen(const Problem& p, Chosen& chosen, int threads) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  for (int e = thread; e < p.experts; e += threads) chosen.is_chosen[e] = 0;
  __syncthreads();
  for (int slot = thread; slot < p.slots(); slot += threads) {
    const int local = p.ids[slot] - p.first_expert;
    const bool is_own = p.ids[slot] >= 0 && local >= 0 && local < p.experts;
    chosen.of_slot[slot] = static_cast<int16_t>(is_own ? local : -1);
    if (is_own) chosen.is_chosen[local] = 1;
  }
  __syncthreads();
  if (thread < kWarp) {
    int count = 0;
    for (int first = 0; first < p.experts; first += kWarp) {
      const int e = first + lane;
      const bool is_chosen = e < p.experts && chosen.is_chosen[e] != 0;
      const unsigned all = __ballot_sync(kFullMask, is_chosen);
      if (is_chosen) {
        chosen.experts[count + __popc(all & ((1u << lane) - 1))] = static_cast<int16_t>(e);
      }
      count += __popc(all);
    }
    if (lane == 0) chosen.count = count;
  }
  __syncthreads();
}

// Puts the slots `skipped` to `skipped` + most - 1 of those of an expert into `list`, and returns
// how many slots the expert has. A warp calls it for a list of its own.
__device__ __forceinline__ int list_slots(const Problem& p, const Chosen& chosen, int expert,
                                          int skipped, int most, int16_t* list) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int count = 0;
  for (int first = 0; first < p.slots(); first += kWarp) {
    const int slot = first + lane;
    const bool is_own = slot < p.slots() && chosen.of_slot[slot] == expert;
    const unsigned all = __ballot_sync(kFullMask, is_own);
    const int at = count + __popc(all & ((1u << lane) - 1)) - skipped;
    if (is_own && at >= 0 && at < most) list[at] = static_cast<int16_t>(slot);
    count += __popc(all);
  }
  __syncwarp();
  return count;
}

// The sums of kWidths times 16 rows for 8 kTiles columns.
template <int kWidths, int kTiles>
struct Sums {
  float c[kWidths][kTiles][4] = {};
};

// sums += w x over chunks of 32 depths, `chunks` of them. The lane's pointers are at its own eight
// depths: those of two rows of each width, and of a column of each tile; null: the column is 0.
// Depths are permuted alike in w and x: a lane's four first are those of one instruction, its four
// others of the next.
template <class T, int kWidths, int kTiles, int kUnroll>
__device__ __forceinline__ void multiply_chunks(Sums<kWidths, kTiles>& sums,
                                                const T* const (&rows)[kWidths][2],
                                                const T* const (&columns)[kTiles], int chunks) {
  const auto multiply = [&]<int kChunks>(int first) {
    uint4 w[kChunks][kWidths][2], x[kChunks][kTiles];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int at = (first + i) * kDepths;
#pragma unroll
      for (int width = 0; width < kWidths; ++width) {
        w[i][width][0] = load_once(rows[width][0] + at);
        w[i][width][1] = load_once(rows[width][1] + at);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        x[i][tile] = uint4{0, 0, 0, 0};
        if (columns[tile] != nullptr) {
          x[i][tile] = *reinterpret_cast<const uint4*>(columns[tile] + at);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int width = 0; width < kWidths; ++width) {
        const uint4 a = w[i][width][0], b = w[i][width][1];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply_add<T>(sums.c[width][tile], {a.x, b.x, a.y, b.y}, x[i][tile].x, x[i][tile].y);
          multiply_add<T>(sums.c[width][tile], {a.z, b.z, a.w, b.w}, x[i][tile].z, x[i][tile].w);
        }
      }
    }
  };
  int chunk = 0;
#pragma unroll 1
  for (; chunk + kUnroll <= chunks; chunk += kUnroll) multiply.template operator()<kUnroll>(chunk);
#pragma unroll 1
  for (; chunk < chunks; ++chunk) multiply.template operator()<1>(chunk);
}

// Chunks whose weights are in flight together on a lane, as many as there are registers for.
constexpr int unrolled(int widths, int tiles) {
  return tiles == 1 ? 4 / widths : widths == 1 ? 2 : 1;
}

// The same with the tiles alone that `slots` columns need.
template <class T, int kWidths, int kTiles, int kUsed = 1>
__device__ __forceinline__ void multiply_slots(Sums<kWidths, kTiles>& sums,
                                               const T* const (&rows)[kWidths][2],
                                               const T* const (&columns)[kTiles], int chunks,
                                               int slots) {
  if constexpr (kUsed < kTiles) {
    if (slots > kUsed * kTileSlots) {
      return multiply_slots<T, kWidths, kTiles, 2 * kUsed>(sums, rows, columns, chunks, slots);
    }
  }
  Sums<kWidths, kUsed> used;
  const T* first[kUsed];
#pragma unroll
  for (int tile = 0; tile < kUsed; ++tile) first[tile] = columns[tile];
  multiply_chunks<T, kWidths, kUsed, unrolled(kWidths, kUsed)>(used, rows, first, chunks);
#pragma unroll
  for (int width = 0; width < kWidths; ++width) {
#pragma unroll
    for (int tile = 0; tile < kUsed; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums.c[width][tile][i] = used.c[width][tile][i];
    }
  }
}

template <class T>
__device__ __forceinline__ float bias_at(const void* bias, int64_t at) {
  return bias == nullptr ? 0.0f : to_float(static_cast<const T*>(bias)[at]);
}
template <class T>
__device__ __forceinline__ float rounded_once(float x) {
  return to_float(from_float<T>(x));
}

// Blocks of up_kernel that a multiprocessor has at once.
constexpr int up_blocks(int tiles) { return tiles == 1 ? 3 : 2; }
// inside = p act(fc1(x) + bias). A block has 16 outputs of an expert in turn; its warps divide h.
template <class T, int kWidths, int kTiles>
__global__ void __launch_bounds__(kUpWarps* kWarp, up_blocks(kTiles))
    up_kernel(const __grid_constant__ Problem p) {
  constexpr int kColumns = kTiles * kTileSlots;
  constexpr int kPitch = kColumns + 1;  // of a row of sums, against bank conflicts
  constexpr int kThreadsOfBlock = kUpWarps * kWarp;
  __shared__ Chosen chosen;
  __shared__ int16_t lists[kUpWarps][kColumns];
  __shared__ float parts[kUpWarps][kWidths][kRows * kPitch];
  wait_for_earlier_kernels();
  // After the wait: the next kernel reads the ids before this one has ended.
  let_next_kernel_start();
  find_chosen(p, chosen, kThreadsOfBlock);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int tiles = p.inner / kRows, items = chosen.count * tiles, all = p.hidden / kDepths;
  const int begin = all * warp / kUpWarps, end = all * (warp + 1) / kUpWarps;
  const int own_depth = begin * kDepths + quad * 8;
  const int64_t out_rows = int64_t{p.inner} * kWidths;

#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const int expert = chosen.experts[item / tiles], row = item % tiles * kRows;
    const T* rows[kWidths][2];
#pragma unroll
    for (int width = 0; width < kWidths; ++width) {
      const int64_t first = expert * out_rows + int64_t{width} * p.inner + row + group;
      rows[width][0] = static_cast<const T*>(p.fc1) + first * p.hidden + own_depth;
      rows[width][1] = rows[width][0] + int64_t{8} * p.hidden;
    }
    int count = 1;
#pragma unroll 1
    for (int skipped = 0; skipped < count; skipped += kColumns) {
      count = list_slots(p, chosen, expert, skipped, kColumns, lists[warp]);
      const T* columns[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int column = tile * kTileSlots + group;
        columns[tile] = nullptr;
        if (skipped + column < count) {
          columns[tile] = static_cast<const T*>(p.x) +
                          int64_t{lists[warp][column] / p.k} * p.hidden + own_depth;
        }
      }
      Sums<kWidths, kTiles> sums;
      multiply_slots<T>(sums, rows, columns, end - begin, count - skipped);
#pragma unroll
      for (int width = 0; width < kWidths; ++width) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const float(&c)[4] = sums.c[width][tile];
          float* const to = parts[warp][width] + group * kPitch + tile * kTileSlots + quad * 2;
          to[0] = c[0];
          to[1] = c[1];
          to[8 * kPitch] = c[2];
          to[8 * kPitch + 1] = c[3];
        }
      }
      __syncthreads();
      const int outputs = min(count - skipped, kColumns) * kRows;
      for (int i = thread; i < outputs; i += kThreadsOfBlock) {
        const int column = i / kRows, own = i % kRows;
        const int slot = lists[0][column];
        const float weight = p.weights[slot];
        float values[2] = {};
#pragma unroll
        for (int width = 0; width < kWidths; ++width) {
          float sum = 0;
#pragma unroll
          for (int w = 0; w < kUpWarps; ++w) sum += parts[w][width][own * kPitch + column];
          if (p.weighs_input) sum *= weight;
          values[width] =
              rounded_once<T>(sum) +
              bias_at<T>(p.fc1_bias, expert * out_rows + int64_t{width} * p.inner + row + own);
        }
        const float y = activated(p.activation, values[0], values[1]);
        static_cast<T*>(p.inside)[int64_t{slot} * p.inner + row + own] =
            from_float<T>(p.weighs_input ? y : y * weight);
      }
      __syncthreads();  // before the next sums and lists
    }
  }
}

// The splits of an expert's depths among warps: so many that all warps have work, if there is room.
__device__ __forceinline__ int splits_of(int experts, int slots, int chunks) {
  int splits = 1;
  while (experts * splits * 2 <= kDownWarps && slots * splits * 2 <= kMostParts &&
         splits * 2 <= chunks) {
    splits *= 2;
  }
  return splits;
}

// y = the sums of fc2(inside) + p bias. A block has 16 outputs in turn, for all tokens; its warps
// divide the experts and their depths.
template <class T, int kTiles>
__global__ void __launch_bounds__(kDownWarps* kWarp, 1)
    down_kernel(const __grid_constant__ Problem p) {
  constexpr int kColumns = kTiles * kTileSlots;
  constexpr int kThreadsOfBlock = kDownWarps * kWarp;
  __shared__ Chosen chosen;
  __shared__ int16_t lists[kDownWarps][kColumns];
  __shared__ float parts[kMostParts][kRows];  // [splits, slots, rows]
  // The kernel before, up_kernel(), lets this one start when the ids are there.
  find_chosen(p, chosen, kThreadsOfBlock);
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int tiles = p.hidden / kRows, all = p.inner / kDepths, slots = p.slots();
  const int splits = splits_of(chosen.count, slots, all), units = chosen.count * splits;

#pragma unroll 1
  for (int item = static_cast<int>(blockIdx.x); item < tiles; item += static_cast<int>(gridDim.x)) {
    const int row = item * kRows;
#pragma unroll 1
    for (int unit = warp; unit < units; unit += kDownWarps) {
      const int expert = chosen.experts[unit / splits], split = unit % splits;
      const int begin = all * split / splits, end = all * (split + 1) / splits;
      const int own_depth = begin * kDepths + quad * 8;
      const T* const first = static_cast<const T*>(p.fc2) +
                             (int64_t{expert} * p.hidden + row + group) * p.inner + own_depth;
      const T* const rows[1][2] = {{first, first + int64_t{8} * p.inner}};
      int count = 1;
#pragma unroll 1
      for (int skipped = 0; skipped < count; skipped += kColumns) {
        count = list_slots(p, chosen, expert, skipped, kColumns, lists[warp]);
        const T* columns[kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int column = tile * kTileSlots + group;
          columns[tile] = nullptr;
          if (skipped + column < count) {
            columns[tile] = static_cast<const T*>(p.inside) +
                            int64_t{lists[warp][column]} * p.inner + own_depth;
          }
        }
        Sums<1, kTiles> sums;
        multiply_slots<T>(sums, rows, columns, end - begin, count - skipped);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = tile * kTileSlots + quad * 2 + i % 2;
            if (skipped + column < count) {
              parts[split * slots + lists[warp][column]][group + i / 2 * 8] = sums.c[0][tile][i];
            }
          }
        }
        __syncwarp();  // before the next list
      }
    }
    __syncthreads();
    for (int i = thread; i < p.tokens * kRows; i += kThreadsOfBlock) {
      const int token = i / kRows, own = i % kRows;
      float y = 0;
      for (int j = 0; j < p.k; ++j) {
        const int slot = token * p.k + j, expert = chosen.of_slot[slot];
        if (expert < 0) continue;
        float sum = 0;
        for (int split = 0; split < splits; ++split) sum += parts[split * slots + slot][own];
        const float bias = bias_at<T>(p.fc2_bias, int64_t{expert} * p.hidden + row + own);
        y += sum + (p.weighs_input ? bias : p.weights[slot] * bias);
      }
      static_cast<T*>(p.y)[int64_t{token} * p.hidden + row + own] = from_float<T>(y);
    }
    __syncthreads();  // before the next parts
  }
}

struct Kernels {
  void (*up)(Problem);
  void (*down)(Problem);
  int up_blocks;
};
template <class T, int kTiles>
Kernels kernels_of_tiles(const Problem& p) {
  return {p.is_gated ? up_kernel<T, 2, kTiles> : up_kernel<T, 1, kTiles>, down_kernel<T, kTiles>,
          up_blocks(kTiles)};
}
// An expert has at most one slot of each token.
template <class T>
Kernels kernels_of(const Problem& p) {
  if (p.tokens <= kTileSlots) return kernels_of_tiles<T, 1>(p);
  if (p.tokens <= 2 * kTileSlots) return kernels_of_tiles<T, 2>(p);
  return kernels_of_tiles<T, 4>(p);
}

}  // namespace megatron::kernels::cuda::experts
