#include "megatron/kernels/draw.h"

#include "megatron/kernels/cuda/draw_weights.cuh"

// A block draws the token of a row. Where the text has penalties, its penalized logits lie in the
// workspace first.
namespace megatron::kernels::cuda {
namespace {

// A logit and its index as one number: larger for larger logits, of equal ones for lower indices.
__device__ Sum key_of(float logit, int index) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
  const uint32_t order = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return Sum{order} << 32 | static_cast<uint32_t>(~index);
}
__device__ int index_of(Sum key) { return static_cast<int>(~static_cast<uint32_t>(key)); }
__device__ float logit_of(Sum key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(order >> 31 != 0 ? order & 0x7fffffffu : ~order);
}

// The largest key below a limit that a thread has seen, and whether a logit is NaN.
struct Leader {
  Sum limit = ~Sum{0};
  Sum best = 0;
  bool has_nan = false;

  __device__ void see(float logit, int index) {
    has_nan = has_nan || logit != logit;
    const Sum key = key_of(logit, index);
    best = key > best && key < limit ? key : best;
  }
  template <int N>
  __device__ void see_pack(const AnyInput& logits, int64_t first, int index) {
    float values[N];
    logits.read(values, first + index);
#pragma unroll
    for (int i = 0; i < N; ++i) see(values[i], index + i);
  }
  __device__ void see_row(const AnyInput& logits, int64_t first, int count) {
    const int thread = static_cast<int>(threadIdx.x);
    const bool is_wide = first % kVector == 0 && reinterpret_cast<uintptr_t>(logits.data) % 16 == 0;
    const int wide_end = is_wide ? count / kVector * kVector : 0;
#pragma unroll 4
    for (int i = thread * kVector; i < wide_end; i += kDrawBlock * kVector) {
      see_pack<kVector>(logits, first, i);
    }
    for (int i = wide_end + thread; i < count; i += kDrawBlock) see_pack<1>(logits, first, i);
  }

  // Of all threads, on every thread.
  __device__ Leader of_block(DrawShared& shared) const {
    Leader all = *this;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const Sum other = __shfl_xor_sync(kFullMask, all.best, step);
      all.best = other > all.best ? other : all.best;
    }
    if (threadIdx.x % kWarp == 0) shared.warps[threadIdx.x / kWarp] = all.best;
    all.has_nan = __syncthreads_or(has_nan) != 0;
    for (unsigned w = 0; w < kDrawBlock / kWarp; ++w) {
      all.best = shared.warps[w] > all.best ? shared.warps[w] : all.best;
    }
    __syncthreads();
    return all;
  }
};

// A row: its logits and, where it has penalties, what they make of them, as bits in places.
struct Row {
  AnyInput logits;
  int64_t first;
  int count;
  Sum* places;
  bool is_penalized;

  __device__ float raw(int i) const {
    float logit[1];
    logits.read(logit, first + i);
    return logit[0];
  }
  __device__ float operator()(int i) const {
    return is_penalized ? __uint_as_float(static_cast<uint32_t>(places[i])) : raw(i);
  }
};

// The text of a row.
struct Text {
  int32_t* ids;
  const int32_t* pages;
  int length;
  int page_tokens;

  __device__ int32_t& operator[](int i) const {
    return ids[int64_t{pages[i / page_tokens]} * page_tokens + i % page_tokens];
  }
};

struct Texts {
  int32_t* ids;
  const int32_t* pages;
  const int32_t* lengths;
  const int64_t* last;
  int64_t max_pages;
  int page_tokens;

  __device__ Text of_row(int64_t row) const {
    return {ids, pages + row * max_pages, lengths[row], page_tokens};
  }
};

// Fills the row's places. While the text is read, the upper half of a place counts how often the
// token is behind the prompt, and its first bit says whether the text has it at all.
__device__ void penalize(const Row& row, const Draw& draw, const Text& text) {
  constexpr Sum kIsThere = Sum{1} << 63;
  constexpr Sum kOnce = Sum{1} << 32;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < row.count; i += kDrawBlock) row.places[i] = __float_as_uint(row.raw(i));
  __syncthreads();
  for (int i = thread; i < text.length; i += kDrawBlock) {
    const int32_t id = text[i];
    if (id < 0 || id >= row.count) continue;
    atomicOr(&row.places[id], kIsThere);
    if (i >= draw.prompt_length) atomicAdd(&row.places[id], kOnce);
  }
  __syncthreads();
  const auto repetition = static_cast<float>(draw.repetition_penalty);
  for (int i = thread; i < row.count; i += kDrawBlock) {
    const Sum place = row.places[i];
    if (place < kIsThere) continue;
    float logit = __uint_as_float(static_cast<uint32_t>(place));
    if (draw.repetition_penalty != 1) {
      logit = logit > 0 ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
    }
    const auto times = static_cast<uint32_t>((place & ~kIsThere) >> 32);
    if (times > 0) {
      logit =
          __fsub_rn(logit, static_cast<float>(__dadd_rn(draw.presence_penalty,
                                                        __dmul_rn(draw.frequency_penalty, times))));
    }
    row.places[i] = __float_as_uint(logit);
  }
  __syncthreads();
}

// Leaves the row's token in shared.token.
__device__ void draw_token(const Row& row, const Draw& draw, DrawShared& shared) {
  Leader leader;
  if (row.is_penalized) {
    for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kDrawBlock)
      leader.see(row(i), i);
  } else {
    leader.see_row(row.logits, row.first, row.count);
  }
  leader = leader.of_block(shared);
  const bool has_token = row.count > 0 && !leader.has_nan;
  if (threadIdx.x == 0) shared.token = has_token ? index_of(leader.best) : kNoToken;
  __syncthreads();
  if (!has_token || draw.top_k == 1) return;

  DrawWeights w{row.places, row.count};
  const auto largest = static_cast<double>(logit_of(leader.best));
  for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kDrawBlock) {
    const double exponent = (static_cast<double>(row(i)) - largest) / draw.temperature;
    // Below half of a unit it rounds to 0.
    w.data[i] = exponent < -25 ? 0 : __double2ull_rn(exp(exponent) * 0x1p34);
  }
  __syncthreads();
  if (draw.top_k > 1 && draw.top_k < row.count) {
    const Crossing kth = crossing(w, true, static_cast<Sum>(draw.top_k - 1), shared);
    if (kth.weight > 0) w.least = kth.weight;
  }
  Sum total = drop_losers(w, shared);
  if (draw.top_p > 0) {
    const double limit = draw.top_p * static_cast<double>(total);
    // A sum is above the limit if it is above the limit's whole part.
    const Crossing at = crossing(w, false, static_cast<Sum>(limit), shared);
    if (at.weight > 0) {
      w.least = at.weight;
      w.num_least = (static_cast<Sum>(limit) - at.above) / at.weight + 1;
      total = drop_losers(w, shared);
      w.num_least = ~Sum{0};
    }
  }
  if (draw.min_p > 0) {
    const auto least = static_cast<Sum>(ceil(draw.min_p * 0x1p34));
    if (least > w.least) {
      w.least = least;
      total = drop_losers(w, shared);
    }
  }

  const double target = draw.uniform * static_cast<double>(total);
  const Stretch mine(row.count);
  Sum own = 0;
  for (int i = mine.begin; i < mine.end; ++i) own += w.data[i];
  Sum all = 0;
  Sum before = sum_before(own, all, shared);
  // The product may round to the sum itself: then the last weight is drawn.
  const bool is_beyond = target >= static_cast<double>(total);
  const bool is_mine = is_beyond ? own > 0 && before + own == total
                                 : static_cast<double>(before) <= target &&
                                       static_cast<double>(before + own) > target;
  if (is_mine) {
    for (int i = mine.begin; i < mine.end; ++i) {
      if (w.data[i] == 0) continue;
      before += w.data[i];
      shared.token = i;
      if (static_cast<double>(before) > target) break;
    }
  }
  __syncthreads();
}

// The sum over all threads in a fixed order, on every thread.
__device__ double block_sum(double value, DrawShared& shared) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) shared.sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < kDrawBlock / kWarp; ++w) total += shared.sums[w];
  __syncthreads();
  return total;
}

// Log-probabilities of the row's token and of the most probable ones among `known`.
__device__ void find_probabilities(TokenLogProbability* found, const Row& row, int known,
                                   int num_found, DrawShared& shared) {
  Leader leader;
  leader.see_row(row.logits, row.first, known);
  leader = leader.of_block(shared);
  const auto largest = static_cast<double>(logit_of(leader.best));
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < known; i += kDrawBlock) {
    sum += exp(static_cast<double>(row.raw(i)) - largest);
  }
  const double log_sum = largest + log(block_sum(sum, shared));
  if (threadIdx.x == 0) {
    found[0] = {static_cast<double>(row.raw(shared.token)) - log_sum, shared.token};
  }
  for (int n = 1; n < num_found; ++n) {
    if (threadIdx.x == 0) {
      found[n] = leader.best > 0
                     ? TokenLogProbability{static_cast<double>(logit_of(leader.best)) - log_sum,
                                           index_of(leader.best)}
                     : TokenLogProbability{0, kNoToken};
    }
    if (n + 1 == num_found) return;
    Leader next;
    next.limit = leader.best;
    next.see_row(row.logits, row.first, known);
    leader = next.of_block(shared);
  }
}

__global__ void __launch_bounds__(kDrawBlock)
    draw_kernel(int32_t* tokens, TokenLogProbability* probabilities, AnyInput logits,
                const Draw* draws, Texts texts, Sum* workspace, int64_t v) {
  __shared__ DrawShared shared;
  const int64_t index = blockIdx.x;
  const Draw draw = draws[index];
  const Row row{logits, index * v, static_cast<int>(draw.vocab_size < v ? draw.vocab_size : v),
                workspace + index * v, draw.has_penalty()};
  if (texts.last != nullptr && texts.lengths[index] > 0) {
    const Text text = texts.of_row(index);
    if (threadIdx.x == 0) text[text.length - 1] = static_cast<int32_t>(texts.last[index]);
    __syncthreads();
  }
  if (row.is_penalized) penalize(row, draw, texts.of_row(index));
  draw_token(row, draw, shared);
  if (threadIdx.x == 0) tokens[index] = shared.token;
  if (draw.num_probabilities == 0 || shared.token == kNoToken) return;
  find_probabilities(probabilities + index * kMostProbabilities, row,
                     static_cast<int>(draw.known_size < v ? draw.known_size : v),
                     draw.num_probabilities, shared);
}

__global__ void put_ids_kernel(int32_t* ids, const int32_t* tokens, const int32_t* slots,
                               int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += gridDim.x * int64_t{blockDim.x}) {
    ids[slots[i]] = tokens[i];
  }
}

}  // namespace

void draw_tokens(TensorView tokens, TensorView probabilities, ConstView logits, ConstView draws,
                 const DrawTexts& texts, TensorView workspace, Stream stream) {
  if (logits.size(0) == 0) return;
  Texts on_device{};
  if (texts.ids.data != nullptr) {
    on_device = {.ids = texts.ids.as<int32_t>(),
                 .pages = texts.pages.as<int32_t>(),
                 .lengths = texts.lengths.as<int32_t>(),
                 .last = texts.last.data != nullptr ? texts.last.as<int64_t>() : nullptr,
                 .max_pages = texts.pages.size(1),
                 .page_tokens = static_cast<int>(texts.ids.size(1))};
  }
  draw_kernel<<<static_cast<unsigned>(logits.size(0)), kDrawBlock, 0, native(stream)>>>(
      tokens.as<int32_t>(), static_cast<TokenLogProbability*>(probabilities.data),
      any_input(logits, "draw_tokens"), static_cast<const Draw*>(draws.data), on_device,
      static_cast<Sum*>(workspace.data), logits.size(1));
  MG_CUDA(cudaGetLastError());
}

void put_ids(TensorView ids, ConstView tokens, ConstView slots, Stream stream) {
  const int64_t n = tokens.numel();
  if (n == 0) return;
  put_ids_kernel<<<blocks_for(n, kThreads), kThreads, 0, native(stream)>>>(
      ids.as<int32_t>(), tokens.as<int32_t>(), slots.as<int32_t>(), n);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
