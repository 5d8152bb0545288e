#pragma once

#include "megatron/kernels/cuda/decode_text_attention.cuh"
#include "megatron/kernels/cuda/decode_text_common.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// MMA warps of the kernel decode_text: consumers of the weight ring.
namespace megatron::kernels::cuda::text {

// One MMA warp (split-K over warps). It multiplies, and loads, the same columns of every vector:
// adjacent chunks of each slot of its group.
//
// Blocks wait for each other many times a layer, so each instruction between a received and a
// published element adds latency. Addresses are computed once, in the constructor.
template <class T, class Size>
struct MmaWarp {
  static constexpr int kChunks = Size::kChunks, kNormSteps = Size::kNormSteps;
  static constexpr int kEights = kChunk / kAtOnce;  // groups of eight elements of a chunk
  static constexpr int kPiecesAtOnce = Size::kPiecesAtOnce;
  static constexpr int kSteps = (kPiecesAtOnce * kChunks * kEights + kWarp - 1) / kWarp;
  static_assert(kSteps >= kNormSteps);

  const Parameters& p;
  const DecodeTextShape& s;
  SharedMemory shared;
  WeightRing ring;
  int warp, lane, chunks;             // chunks: the warp's chunks of a slot
  uint32_t input, products;           // the lane's addresses in shared memory
  int lower_row, upper_row;           // the lane's rows of a tile
  uint32_t row_column, x_piece;       // bytes: offset in a row; stride of input pieces
  int column[kSteps], piece[kSteps];  // of the lane's steps; see await_elements()
  int turn = 0;                       // buffer index of the products
  int norm_turn = 0;
  uint4 lower[kChunks], upper[kChunks];               // weights of two rows; see read_slot()
  float own_count, inverse_count, inverse_own_count;  // of normed elements, for moments()
  uint32_t ended = 0;                                 // cycles_now() at the end of the last product
  uint32_t empty_parity = 1;                          // both buffers start empty

  __device__ MmaWarp(const Parameters& parameters, const SharedMemory& memory,
                     const WeightRing& slots, int own_warp, int own_lane)
      : p(parameters),
        s(parameters.shape),
        shared(memory),
        ring(slots),
        warp(own_warp),
        lane(own_lane),
        chunks((slots.columns / kChunk - own_warp % kGroupWarps + kGroupWarps - 1) / kGroupWarps) {
    const int group = warp / kGroupWarps, own = warp % kGroupWarps;
    ring.slot = group;
    // The warp's first column of a slot, or 0 for a warp without chunks.
    const int all_chunks = p.columns / kChunk;
    const int first_chunk = all_chunks / kGroupWarps * own + min(own, all_chunks % kGroupWarps);
    const int first_column = Size::kSureChunks > 0 || chunks > 0 ? first_chunk * kChunk : 0;
    lower_row = lane / 4;
    upper_row = lower_row + 8;
    row_column = static_cast<uint32_t>(first_column * 2 + lane % 4 * 16);
    x_piece = static_cast<uint32_t>(kGroups * p.columns * 2);
    input = shared_address(shared.input) +
            static_cast<uint32_t>((group * p.columns + first_column) * 2 + lane % 4 * 16 +
                                  lane / 4 % 2 * 8);
    products = shared_address(shared.products + warp * p.part_rows + lower_row);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int chunk = (i * kWarp + lane) / kEights;
      const bool is_own = chunk % kChunks < chunks && chunk < kPiecesAtOnce * kChunks;
      piece[i] = is_own ? chunk / kChunks : kNoPiece;
      column[i] = (group + chunk / kChunks * kGroups) * p.columns + first_column +
                  chunk % kChunks * kChunk + lane % kEights * kAtOnce;
    }
    const int pieces = shared.plan[kQkv].pieces;
    own_count = static_cast<float>(pieces * chunks * kChunk);
    inverse_own_count = chunks == 0 ? 0.0f : 1 / own_count;
    inverse_count = 1 / static_cast<float>(s.hidden);
  }
  // Prevents the compiler from recomputing the addresses of all steps and spilling them.
  __device__ __forceinline__ void make_addresses_opaque() {
    make_opaque(lane);
    make_opaque(warp);
    make_opaque(lower_row);
    make_opaque(upper_row);
    make_opaque(row_column);
    make_opaque(input);
    make_opaque(products);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      make_opaque(column[i]);
      make_opaque(piece[i]);
    }
  }

  // Accumulators of a tile. A lane loads 8 adjacent elements of two rows at a time. The tensor core
  // treats them as two times four elements of rows that are 8 apart, and multiplies the first four
  // by its first column and the others by its second, which hold the same elements of the vector.
  // So 8 rows of weights need one instruction for 32 columns, without moving registers.
  struct Sums {
    float lower[2][4] = {}, upper[2][4] = {};

    __device__ __forceinline__ static float row(const float (&c)[2][4]) {
      return (c[0][0] + c[0][3]) + (c[1][0] + c[1][3]);
    }
  };
  // Byte offsets of the lane's two rows of a tile in a slot.
  struct Rows {
    uint32_t lower, upper;
  };
  __device__ __forceinline__ Rows rows_of(int rows) const {
    return {static_cast<uint32_t>(min(lower_row, rows - 1) * p.row_bytes) + row_column,
            static_cast<uint32_t>(min(upper_row, rows - 1) * p.row_bytes) + row_column};
  }
  // Byte offset of chunk i from the warp's first. For a chunk beyond the warp's the weights are
  // those of the first chunk and the input is 0.
  __device__ __forceinline__ bool has_chunk(int i) const {
    return i < Size::kSureChunks || i < chunks;
  }
  __device__ __forceinline__ uint32_t chunk_at(int i) const {
    return has_chunk(i) ? static_cast<uint32_t>(i * kChunk * 2) : 0;
  }
  // Loads the input of chunk i of a piece.
  __device__ __forceinline__ uint2 read_input(int piece_index, int i) const {
    const uint2 x =
        load_shared_two(input + static_cast<uint32_t>(piece_index) * x_piece + chunk_at(i));
    return has_chunk(i) ? x : uint2{0, 0};
  }
  // Waits for the group's next full slot, loads its chunks into registers, each after f(i), and
  // releases the slot.
  template <class F>
  __device__ __forceinline__ void read_slot(const Rows& rows, const F& f) {
    barrier::wait(ring.full_barrier(), ring.parity);
    const uint32_t slot = ring.slot_address(), empty_barrier = ring.empty_barrier();
    ring.advance(kGroups);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      f(i);
      lower[i] = load_shared(slot + rows.lower + chunk_at(i));
      upper[i] = load_shared(slot + rows.upper + chunk_at(i));
    }
    __syncwarp();
    if (lane == 0) barrier::arrive(empty_barrier);
  }
  __device__ __forceinline__ void multiply_chunk(Sums& c, const uint2& x, int i) const {
    const uint4 a = lower[i], b = upper[i];
    multiply_add<T>(c.lower[i % 2], {a.x, a.y, a.z, a.w}, x.x, x.y);
    multiply_add<T>(c.upper[i % 2], {b.x, b.y, b.z, b.w}, x.x, x.y);
    // Keeps the product before the next loads: registers hold one slot.
    pin_value(c.lower[i % 2][0]);
    pin_value(c.upper[i % 2][0]);
  }

  // Reads the first slot of a part.
  __device__ __forceinline__ void read_first(const RowRange& part) {
    read_slot(rows_of(ring.rows_of_tile(part, 0)), [](int) {});
  }
  // Multiplies a part of a weight by `pieces` of the input; stores products from `row` on. Software
  // pipeline: loads of a slot overlap with the product of the slot before. REQUIRES:
  // read_first(part).
  __device__ __forceinline__ void multiply(const RowRange& part, int pieces, int row) {
    uint32_t to = products + static_cast<uint32_t>(turn * kMmaWarps * p.part_rows + row) * 4;
    int count = ring.rows_of_tile(part, 0);
    Rows rows = rows_of(count);
    uint2 x[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) x[i] = read_input(0, i);
#pragma unroll 1
    for (int first = 0; first < part.count;
         first += p.tile_rows, to += static_cast<uint32_t>(p.tile_rows) * 4) {
      Sums c;
      const int rows_of_tile = count;
#pragma unroll 1
      for (int next = 1; next <= pieces; ++next) {
        const bool ends_tile = next == pieces;
        if (ends_tile) {
          if (first + p.tile_rows >= part.count) {
#pragma unroll
            for (int i = 0; i < kChunks; ++i) multiply_chunk(c, x[i], i);
            break;
          }
          count = ring.rows_of_tile(part, first + p.tile_rows);
          rows = rows_of(count);
        }
        read_slot(rows, [&](int i) {
          multiply_chunk(c, x[i], i);
          x[i] = read_input(ends_tile ? 0 : next, i);
        });
      }
      if (lane % 4 == 0) {
        if (lower_row < rows_of_tile) store_shared(to, Sums::row(c.lower));
        if (upper_row < rows_of_tile) store_shared(to + 8 * 4, Sums::row(c.upper));
      }
    }
  }
  __device__ __forceinline__ void acquire_products() const {
    barrier::wait(shared_address(shared.products_empty + turn), empty_parity);
  }
  __device__ __forceinline__ void commit_products() {
    __syncwarp();
    if (lane == 0) barrier::arrive(shared_address(shared.products_full + turn));
    ended = cycles_now();
    empty_parity ^= static_cast<uint32_t>(turn);
    turn ^= 1;
  }

  // A lane receives eight of the warp's elements of a vector in each step. column[i] and piece[i]
  // belong to step i; a piece is the part of the vector that one slot of the group multiplies.
  static constexpr int kNoPiece = 1 << 20;

  // Waits for the lane's elements of kReceived steps, from element `first` of a vector on. All
  // missing ones are polled before the first answer is used, because the latency of a poll
  // dominates. The zero initialization ends the live range of the registers, which conditional
  // loads would extend.
  template <int kReceived>
  __device__ __forceinline__ void await_elements(const FlaggedElement* from, int first, int pieces,
                                                 EightFlagged (&found)[kReceived]) const {
    bool have_all = false;
#pragma unroll
    for (int i = 0; i < kReceived; ++i) {
      found[i] = {0, 0, 0, 0};
      if (piece[i] < pieces) found[i] = poll(from + padded_index(first + column[i]));
    }
    while (!have_all) {
      have_all = true;
#pragma unroll
      for (int i = 0; i < kReceived; ++i) {
        if (piece[i] >= pieces || all_ready(found[i])) continue;
        have_all = false;
        found[i] = poll(from + padded_index(first + column[i]));
      }
    }
  }
  // Stores eight elements to shared.input, pairs in the order 0, 2, 1, 3, so that a lane loads the
  // two pairs of one instruction together.
  __device__ __forceinline__ void store_input(int at, const uint4& pairs) const {
    reinterpret_cast<uint4*>(shared.input)[at / kAtOnce] = {pairs.x, pairs.z, pairs.y, pairs.w};
  }
  // shared.input = the vector at workspace offset `offset`.
  __device__ __forceinline__ void load_input(int offset, int pieces, int wait) {
    wait_cycles(ended, wait);
    const int at_once = kPiecesAtOnce * kGroups * p.columns;
#pragma unroll 1
    for (int first = 0; pieces > 0; first += at_once, pieces -= kPiecesAtOnce) {
      EightFlagged found[kSteps];
      await_elements(vector_at(p, offset), first, pieces, found);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (piece[i] < pieces) store_input(first + column[i], elements_of(found[i]));
      }
    }
    __syncwarp();
  }

  // Calls f(i) for the steps in which the lane has elements of a normed vector.
  template <class F>
  __device__ __forceinline__ void for_norm_steps(int pieces, const F& f) const {
#pragma unroll
    for (int i = 0; i < kNormSteps; ++i) {
      if (i * kWarp / kEights / kChunks >= pieces) break;
      if (piece[i] < pieces) f(i);
    }
  }
  // Mean and sum of squared deviations over all warps, merged in parallel (Chan et al.).
  __device__ __forceinline__ float2 moments(int pieces, const float (&x)[kNormSteps][kAtOnce]) {
    // Shifted by one of the elements: with a mean far from 0, plain squares would cancel.
    const float near_mean = __shfl_sync(kFullMask, x[0][0], 0);
    float sum = 0, squares = 0;
    for_norm_steps(pieces, [&](int i) {
#pragma unroll
      for (const float number : x[i]) {
        const float distance = number - near_mean;
        sum += distance;
        squares += distance * distance;
      }
    });
    sum = warp_sum(sum);
    squares = warp_sum(squares);
    const float offset = sum * inverse_own_count;
    const float own_mean = near_mean + offset;
    WarpMoments* const warp_moments = shared.moments + norm_turn * kMmaWarps;
    norm_turn ^= 1;
    if (lane == 0) warp_moments[warp] = {own_mean, squares - sum * offset, own_count};
    mma_barrier();
    float mean = 0;
#pragma unroll
    for (int w = 0; w < kMmaWarps; ++w) mean += warp_moments[w].count * warp_moments[w].mean;
    mean *= inverse_count;
    squares = 0;
#pragma unroll
    for (int w = 0; w < kMmaWarps; ++w) {
      const float distance = warp_moments[w].mean - mean;
      squares += warp_moments[w].squares + warp_moments[w].count * distance * distance;
    }
    if (!s.is_rms_norm) return {mean, squares};
    return {0, squares + static_cast<float>(s.hidden) * mean * mean};  // RMSNorm: squares around 0
  }
  // shared.input = the norm of the vector at workspace offset `offset`, or of p.x if it is 0.
  __device__ __forceinline__ void load_normed_input(int offset, int pieces, int wait,
                                                    const void* weight, const void* bias) {
    uint4 weights[kNormSteps] = {}, biases[kNormSteps] = {}, numbers[kNormSteps] = {};
    for_norm_steps(pieces, [&](int i) {
      const int at = column[i] / kAtOnce;
      weights[i] = load_now(static_cast<const uint4*>(weight) + at);
      if (bias != nullptr) biases[i] = load_now(static_cast<const uint4*>(bias) + at);
      if (offset == 0) numbers[i] = load_now(static_cast<const uint4*>(p.x) + at);
    });
    if (offset != 0) {
      wait_cycles(ended, wait);
      EightFlagged found[kNormSteps];
      await_elements(vector_at(p, offset), 0, pieces, found);
#pragma unroll
      for (int i = 0; i < kNormSteps; ++i) numbers[i] = elements_of(found[i]);
    }
    float x[kNormSteps][kAtOnce] = {};
    for_norm_steps(pieces, [&](int i) { eight_floats<T>(numbers[i], x[i]); });
    const float2 all = moments(pieces, x);
    const float mean = all.x;
    const float factor = rsqrtf(all.y * inverse_count + s.epsilon);
    for_norm_steps(pieces, [&](int i) {
      float w[kAtOnce], b[kAtOnce];
      eight_floats<T>(weights[i], w);
      eight_floats<T>(biases[i], b);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (s.one_plus_weight) w[j] += 1;
        x[i][j] = (x[i][j] - mean) * factor * w[j] + b[j];
      }
      store_input(column[i], packed<T>(x[i]));
    });
    __syncwarp();
  }

  template <int kHead>
  __device__ __forceinline__ void run(uint32_t first_tag,
                                      typename DecodeAttention<T, kHead>::Memory& memory) {
    // One loop over all products, so that the code fits the instruction cache.
#pragma unroll 1
    for (ProductOrder at{p};; at.advance()) {
      const int index = at.product;
      const BlockProduct own = shared.plan[index];
      const DecodeTextLayer& layer = shared.layers[at.layer_or_first()];
      const uint32_t tag = first_tag + static_cast<uint32_t>(at.layer);
      make_addresses_opaque();
      const DecodeAttention<T, kHead> attention{p, memory, warp * kWarp + lane, warp, lane};
      if (index == kQkv) attention.prefetch(layer);
      // Weights do not depend on the input: the first slot is loaded before it arrives.
      const RowRange first_part{own.rows.begin, min(own.at_once, own.rows.count)};
      // A block that publishes a head restarts the wait there, and waits only as long as for qkv.
      const bool attends = index == kProj && memory.work.exists;
      const bool publishes = attends && memory.work.split == 0;
      if (attends) attention.attend(layer, tag, ended, shared.tuned[kQuery]);
      if (publishes) ended = cycles_now();
      if (first_part.count > 0) {
        read_first(first_part);
      } else {  // without rows of a router; see await_elements()
#pragma unroll
        for (int i = 0; i < kChunks; ++i) lower[i] = upper[i] = {0, 0, 0, 0};
      }
      if (index == kProj || index == kFc2) {
        load_input(own.input, own.pieces, shared.tuned[publishes ? kQkv : index]);
      } else if (index != kFc1 || !at.has_experts()) {  // experts have their router's input
        const bool is_first = index == kQkv || index == kLogits;  // norm of a layer, or the final
        const bool is_text = index == kQkv && at.layer == 0;
        load_normed_input(is_text ? 0 : own.input, own.pieces, shared.tuned[is_first ? kQkv : kFc1],
                          index == kLogits ? p.final_norm_weight
                          : is_first       ? layer.input_norm_weight
                                           : layer.mlp_norm_weight,
                          index == kLogits ? p.final_norm_bias
                          : is_first       ? layer.input_norm_bias
                                           : layer.mlp_norm_bias);
      }
      if (index == kRouter && warp == 0 && lane == 0) {
        barrier::arrive(shared_address(shared.router_started));
      }
#pragma unroll 1
      for (int first = 0; first < own.rows.count; first += own.at_once) {
        const int count = min(own.at_once, own.rows.count - first);
        acquire_products();
#pragma unroll 1
        for (int half = 0; half < own.halves; ++half) {
          const RowRange part{own.rows.begin + first, count};
          if (first > 0 || half > 0) read_first(part);
          multiply(part, own.pieces, half * count);
        }
        commit_products();
      }
      // All blocks have published proj, so they have read attention's result.
      if (index == kFc1) attention.clear_result();
      if (index == kLogits) break;
    }
  }
};

}  // namespace megatron::kernels::cuda::text
