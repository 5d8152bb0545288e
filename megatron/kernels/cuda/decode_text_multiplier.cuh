#pragma once

#include "megatron/kernels/cuda/decode_text_attention.cuh"
#include "megatron/kernels/cuda/decode_text_worker.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// The warps of the kernel decode_text that multiply.
namespace megatron::kernels::cuda::text {

// A warp. It multiplies the same columns of each vector, and reads no others: neighbouring chunks
// of each slot of its group.
//
// Blocks wait for each other many times a layer, so that each instruction between a word that comes
// and one that is sent counts. What does not change is computed once.
template <class T, class Size>
struct Multiplier {
  static constexpr int kChunks = Size::kChunks, kNormSteps = Size::kNormSteps;
  static constexpr int kEights = kChunk / kAtOnce;  // of a chunk
  static constexpr int kPiecesAtOnce = Size::kPiecesAtOnce;
  static constexpr int kSteps = (kPiecesAtOnce * kChunks * kEights + kWarp - 1) / kWarp;
  static_assert(kSteps >= kNormSteps);

  const Parameters& p;
  const DecodeTextShape& s;
  SharedMemory shared;
  WeightRing ring;
  int warp, lane, chunks;             // `chunks`: its number of them in a slot
  uint32_t input, products;           // shared memory: where the lane begins
  int lower_row, upper_row;           // the lane's rows of a tile
  uint32_t row_column, x_piece;       // bytes: its place in a row; between pieces of a vector
  int column[kSteps], piece[kSteps];  // of the lane's steps; see receive()
  int turn = 0;                       // of the two copies of products and moments
  int norm_turn = 0;
  uint4 lower[kChunks], upper[kChunks];           // weights of two rows; see read()
  float own_numbers, per_number, per_own_number;  // of those that are normed: inverses
  uint32_t ended = 0;                             // when it had multiplied last, in cycles
  uint32_t taken_parity = 1;                      // the first two products wait for nobody

  __device__ Multiplier(const Parameters& parameters, const SharedMemory& memory,
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
    // The first of the warp's columns of a slot; of a warp that has none the slot's first.
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
    own_numbers = static_cast<float>(pieces * chunks * kChunk);
    per_own_number = chunks == 0 ? 0.0f : 1 / own_numbers;
    per_number = 1 / static_cast<float>(s.hidden);
  }
  // Else the compiler computes addresses of all steps once more, and keeps them on the stack.
  __device__ __forceinline__ void forget_addresses() {
    forget(lane);
    forget(warp);
    forget(lower_row);
    forget(upper_row);
    forget(row_column);
    forget(input);
    forget(products);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      forget(column[i]);
      forget(piece[i]);
    }
  }

  // A lane reads 8 neighbouring elements of two rows at once. The tensor core takes them for two
  // times four, of rows that are 8 apart, and multiplies the first four by its first column, the
  // others by its second, which have the same elements of the vector. So 8 rows of weights need
  // one operation for 32 columns, and no register is moved.
  struct Sums {
    float lower[2][4] = {}, upper[2][4] = {};

    __device__ __forceinline__ static float row(const float (&c)[2][4]) {
      return (c[0][0] + c[0][3]) + (c[1][0] + c[1][3]);
    }
  };
  // The lane's two rows of a tile, from the begin of a slot on.
  struct Rows {
    uint32_t lower, upper;
  };
  __device__ __forceinline__ Rows rows_of(int rows) const {
    return {static_cast<uint32_t>(min(lower_row, rows - 1) * p.row_bytes) + row_column,
            static_cast<uint32_t>(min(upper_row, rows - 1) * p.row_bytes) + row_column};
  }
  // Where chunk i begins, from the warp's first. A chunk that is not the warp's counts as 0; the
  // first stands for its weights.
  __device__ __forceinline__ bool has_chunk(int i) const {
    return i < Size::kSureChunks || i < chunks;
  }
  __device__ __forceinline__ uint32_t chunk_at(int i) const {
    return has_chunk(i) ? static_cast<uint32_t>(i * kChunk * 2) : 0;
  }
  // What chunk i of a piece is multiplied with.
  __device__ __forceinline__ uint2 read_input(int piece_index, int i) const {
    const uint2 x =
        load_shared_two(input + static_cast<uint32_t>(piece_index) * x_piece + chunk_at(i));
    return has_chunk(i) ? x : uint2{0, 0};
  }
  // Waits for the group's next slot, reads its chunks, each after f(i), and lets it be filled.
  template <class F>
  __device__ __forceinline__ void read_slot(const Rows& rows, const F& f) {
    barrier::wait(ring.full_barrier(), ring.parity);
    const uint32_t place = ring.place(), empty_barrier = ring.empty_barrier();
    ring.advance(kGroups);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      f(i);
      lower[i] = load_shared(place + rows.lower + chunk_at(i));
      upper[i] = load_shared(place + rows.upper + chunk_at(i));
    }
    __syncwarp();
    if (lane == 0) barrier::arrive(empty_barrier);
  }
  __device__ __forceinline__ void multiply_chunk(Sums& c, const uint2& x, int i) const {
    const uint4 a = lower[i], b = upper[i];
    multiply_add<T>(c.lower[i % 2], {a.x, a.y, a.z, a.w}, x.x, x.y);
    multiply_add<T>(c.upper[i % 2], {b.x, b.y, b.z, b.w}, x.x, x.y);
    // Now, not after the next reads: registers are for one slot.
    settle(c.lower[i % 2][0]);
    settle(c.upper[i % 2][0]);
  }

  // Reads the first slot of a part.
  __device__ __forceinline__ void read_first(const RowPart& part) {
    read_slot(rows_of(ring.rows_of_tile(part, 0)), [](int) {});
  }
  // The products of a part of a weight with `pieces` of the vector, from `row` of the products on.
  // What a slot has is read while the slot before it is multiplied. REQUIRES: read_first(part).
  __device__ __forceinline__ void multiply(const RowPart& part, int pieces, int row) {
    uint32_t to = products + static_cast<uint32_t>(turn * kMultipliers * p.part_rows + row) * 4;
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
  __device__ __forceinline__ void begin_products() const {
    barrier::wait(shared_address(shared.taken + turn), taken_parity);
  }
  __device__ __forceinline__ void end_products() {
    __syncwarp();
    if (lane == 0) barrier::arrive(shared_address(shared.complete + turn));
    ended = cycles_now();
    taken_parity ^= static_cast<uint32_t>(turn);
    turn ^= 1;
  }

  // A lane takes eight of the warp's numbers of a vector a step. column[i] and piece[i] are those
  // of step i: a piece is a part of the vector that is multiplied by one slot of the group.
  static constexpr int kNoPiece = 1 << 20;

  // Waits for the lane's numbers of kReceived steps from element `first` of a vector on. All that
  // have not come are asked for before the first answer is used: answers take longer than the rest
  // of a wait. They begin as 0: registers that a lane may leave as they were would be taken all the
  // time.
  template <int kReceived>
  __device__ __forceinline__ void receive(const Place* from, int first, int pieces,
                                          EightPlaces (&found)[kReceived]) const {
    bool have_all = false;
#pragma unroll
    for (int i = 0; i < kReceived; ++i) {
      found[i] = {0, 0, 0, 0};
      if (piece[i] < pieces) found[i] = look(from + place_of(first + column[i]));
    }
    while (!have_all) {
      have_all = true;
#pragma unroll
      for (int i = 0; i < kReceived; ++i) {
        if (piece[i] >= pieces || have_come(found[i])) continue;
        have_all = false;
        found[i] = look(from + place_of(first + column[i]));
      }
    }
  }
  // Puts eight numbers of the warp into shared.input, their pairs in the order 0, 2, 1, 3, so that
  // a lane reads two pairs that it multiplies at once.
  __device__ __forceinline__ void put(int at, const uint4& pairs) const {
    reinterpret_cast<uint4*>(shared.input)[at / kAtOnce] = {pairs.x, pairs.z, pairs.y, pairs.w};
  }
  // input = the vector at `place`.
  __device__ __forceinline__ void take(int place, int pieces, int wait) {
    wait_cycles(ended, wait);
    const int at_once = kPiecesAtOnce * kGroups * p.columns;
#pragma unroll 1
    for (int first = 0; pieces > 0; first += at_once, pieces -= kPiecesAtOnce) {
      EightPlaces found[kSteps];
      receive(vector_of(p, place), first, pieces, found);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (piece[i] < pieces) put(first + column[i], elements_of(found[i]));
      }
    }
    __syncwarp();
  }

  // f(i) for the steps in which the lane has numbers of a vector that is normed.
  template <class F>
  __device__ __forceinline__ void for_norm_steps(int pieces, const F& f) const {
#pragma unroll
    for (int i = 0; i < kNormSteps; ++i) {
      if (i * kWarp / kEights / kChunks >= pieces) break;
      if (piece[i] < pieces) f(i);
    }
  }
  // The mean of the numbers of all warps, and the sum of the squares of their distances from it.
  __device__ __forceinline__ float2 moments(int pieces, const float (&x)[kNormSteps][kAtOnce]) {
    // Of distances from one of the numbers: if the mean is far from 0, squares of the numbers
    // themselves would lose what they differ in.
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
    const float offset = sum * per_own_number;
    const float own_mean = near_mean + offset;
    WarpMoments* const of_warps = shared.moments + norm_turn * kMultipliers;
    norm_turn ^= 1;
    if (lane == 0) of_warps[warp] = {own_mean, squares - sum * offset, own_numbers};
    multipliers_barrier();
    float mean = 0;
#pragma unroll
    for (int w = 0; w < kMultipliers; ++w) mean += of_warps[w].numbers * of_warps[w].mean;
    mean *= per_number;
    squares = 0;
#pragma unroll
    for (int w = 0; w < kMultipliers; ++w) {
      const float distance = of_warps[w].mean - mean;
      squares += of_warps[w].squares + of_warps[w].numbers * distance * distance;
    }
    if (!s.is_rms_norm) return {mean, squares};
    return {0, squares + static_cast<float>(s.hidden) * mean * mean};  // distances from 0
  }
  // input = the norm of the vector at `place`; 0: of p.x.
  __device__ __forceinline__ void take_norm(int place, int pieces, int wait, const void* weight,
                                            const void* bias) {
    uint4 weights[kNormSteps] = {}, biases[kNormSteps] = {}, numbers[kNormSteps] = {};
    for_norm_steps(pieces, [&](int i) {
      const int at = column[i] / kAtOnce;
      weights[i] = load_now(static_cast<const uint4*>(weight) + at);
      if (bias != nullptr) biases[i] = load_now(static_cast<const uint4*>(bias) + at);
      if (place == 0) numbers[i] = load_now(static_cast<const uint4*>(p.x) + at);
    });
    if (place != 0) {
      wait_cycles(ended, wait);
      EightPlaces found[kNormSteps];
      receive(vector_of(p, place), 0, pieces, found);
#pragma unroll
      for (int i = 0; i < kNormSteps; ++i) numbers[i] = elements_of(found[i]);
    }
    float x[kNormSteps][kAtOnce] = {};
    for_norm_steps(pieces, [&](int i) { eight_floats<T>(numbers[i], x[i]); });
    const float2 all = moments(pieces, x);
    const float mean = all.x;
    const float factor = rsqrtf(all.y * per_number + s.epsilon);
    for_norm_steps(pieces, [&](int i) {
      float w[kAtOnce], b[kAtOnce];
      eight_floats<T>(weights[i], w);
      eight_floats<T>(biases[i], b);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (s.one_plus_weight) w[j] += 1;
        x[i][j] = (x[i][j] - mean) * factor * w[j] + b[j];
      }
      put(column[i], packed<T>(x[i]));
    });
    __syncwarp();
  }

  template <int kHead>
  __device__ __forceinline__ void run(uint32_t first_tag,
                                      typename TextAttention<T, kHead>::Memory& memory) {
    const auto all = static_cast<int>(s.layers) * kProducts;
    // One product after the other, the logits' last: the code of a layer has to fit into the cache
    // of instructions.
#pragma unroll 1
    for (int i = 0; i <= all; ++i) {
      const int index = i == all ? kLogits : i % kProducts;
      const BlockProduct own = shared.plan[index];
      const DecodeTextLayer& layer = shared.layers[index == kLogits ? 0 : i / kProducts];
      const uint32_t tag = first_tag + static_cast<uint32_t>(i / kProducts);
      forget_addresses();
      const TextAttention<T, kHead> attention{p, memory, warp * kWarp + lane, warp, lane};
      if (index == kQkv) attention.prefetch(layer);
      // Weights do not wait for the vector: those of the first slot are read before it comes.
      const RowPart first_part{own.rows.begin, min(own.at_once, own.rows.count)};
      if (index == kProj || index == kFc2) {
        // A block that sends a head waits from then on, and no longer than for other products.
        const bool attends = index == kProj && memory.item.exists;
        const bool sends = attends && memory.item.split == 0;
        if (attends) attention.attend(layer, tag, ended, shared.chosen[kQuery]);
        if (sends) ended = cycles_now();
        read_first(first_part);
        take(own.input, own.pieces, shared.chosen[sends ? kQkv : index]);
      } else {
        read_first(first_part);
        const bool is_first = index != kFc1;  // of a layer, or after the last
        take_norm(i == 0 ? 0 : own.input, own.pieces, shared.chosen[is_first ? kQkv : kFc1],
                  index == kLogits ? p.final_norm_weight
                  : is_first       ? layer.input_norm_weight
                                   : layer.mlp_norm_weight,
                  index == kLogits ? p.final_norm_bias
                  : is_first       ? layer.input_norm_bias
                                   : layer.mlp_norm_bias);
      }
#pragma unroll 1
      for (int first = 0; first < own.rows.count; first += own.at_once) {
        const int count = min(own.at_once, own.rows.count - first);
        begin_products();
#pragma unroll 1
        for (int half = 0; half < own.halves; ++half) {
          const RowPart part{own.rows.begin + first, count};
          if (first > 0 || half > 0) read_first(part);
          multiply(part, own.pieces, half * count);
        }
        end_products();
      }
      // All have sent what they multiplied with attention's result.
      if (index == kFc1) attention.clear_result();
    }
  }
};

}  // namespace megatron::kernels::cuda::text
