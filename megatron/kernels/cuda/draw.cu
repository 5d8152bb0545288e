#include "megatron/kernels/draw.h"

#include "megatron/kernels/cuda/draw_weights.cuh"

// One block samples the token of a row. If the row has penalties, the block first writes the
// penalized logits to the workspace.
namespace megatron::kernels::cuda {
namespace {

// Sortable key of a logit and its index: orders by logit, then by descending index.
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

// Running maximum of the keys below a limit, and a flag for NaN logits.
struct TopLogit {
  Sum limit = ~Sum{0};
  Sum best = 0;
  bool has_nan = false;

  __device__ void consider(float logit, int index) {
    has_nan = has_nan || logit != logit;
    const Sum key = key_of(logit, index);
    best = key > best && key < limit ? key : best;
  }
  template <int N>
  __device__ void consider_pack(const AnyInput& logits, int64_t first, int index) {
    float values[N];
    logits.read(values, first + index);
#pragma unroll
    for (int i = 0; i < N; ++i) consider(values[i], index + i);
  }
  __device__ void consider_row(const AnyInput& logits, int64_t first, int count) {
    const int thread = static_cast<int>(threadIdx.x);
    const bool is_wide = first % kVector == 0 && reinterpret_cast<uintptr_t>(logits.data) % 16 == 0;
    const int wide_end = is_wide ? count / kVector * kVector : 0;
#pragma unroll 4
    for (int i = thread * kVector; i < wide_end; i += kDrawBlock * kVector) {
      consider_pack<kVector>(logits, first, i);
    }
    for (int i = wide_end + thread; i < count; i += kDrawBlock) consider_pack<1>(logits, first, i);
  }

  // Reduces over the block; every thread gets the result.
  __device__ TopLogit block_reduced(DrawShared& shared) const {
    TopLogit all = *this;
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

// A row of logits. With penalties, `penalized` holds the bits of the penalized logits.
struct Row {
  AnyInput logits;
  int64_t first;
  int count;
  Sum* penalized;
  bool is_penalized;

  __device__ float raw(int i) const {
    float logit[1];
    logits.read(logit, first + i);
    return logit[0];
  }
  __device__ float operator()(int i) const {
    return is_penalized ? __uint_as_float(static_cast<uint32_t>(penalized[i])) : raw(i);
  }
};

// A row's text so far, in pages.
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

// Fills row.penalized. In the meantime the upper half of a word counts the token's occurrences
// after the prompt, and its highest bit is set if the text contains the token at all.
__device__ void penalize(const Row& row, const Draw& draw, const Text& text) {
  constexpr Sum kIsPresent = Sum{1} << 63;
  constexpr Sum kOnce = Sum{1} << 32;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < row.count; i += kDrawBlock)
    row.penalized[i] = __float_as_uint(row.raw(i));
  __syncthreads();
  for (int i = thread; i < text.length; i += kDrawBlock) {
    const int32_t id = text[i];
    if (id < 0 || id >= row.count) continue;
    atomicOr(&row.penalized[id], kIsPresent);
    if (i >= draw.prompt_length) atomicAdd(&row.penalized[id], kOnce);
  }
  __syncthreads();
  const auto repetition = static_cast<float>(draw.repetition_penalty);
  for (int i = thread; i < row.count; i += kDrawBlock) {
    const Sum word = row.penalized[i];
    if (word < kIsPresent) continue;
    float logit = __uint_as_float(static_cast<uint32_t>(word));
    if (draw.repetition_penalty != 1) {
      logit = logit > 0 ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
    }
    const auto times = static_cast<uint32_t>((word & ~kIsPresent) >> 32);
    if (times > 0) {
      logit =
          __fsub_rn(logit, static_cast<float>(__dadd_rn(draw.presence_penalty,
                                                        __dmul_rn(draw.frequency_penalty, times))));
    }
    row.penalized[i] = __float_as_uint(logit);
  }
  __syncthreads();
}

// Samples the row's token into shared.token.
__device__ void draw_token(const Row& row, const Draw& draw, DrawShared& shared) {
  TopLogit top;
  if (row.is_penalized) {
    for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kDrawBlock)
      top.consider(row(i), i);
  } else {
    top.consider_row(row.logits, row.first, row.count);
  }
  top = top.block_reduced(shared);
  const bool has_token = row.count > 0 && !top.has_nan;
  if (threadIdx.x == 0) shared.token = has_token ? index_of(top.best) : kNoToken;
  __syncthreads();
  if (!has_token || draw.top_k == 1) return;

  DrawWeights w{row.penalized, row.count};
  const auto largest = static_cast<double>(logit_of(top.best));
  for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kDrawBlock) {
    const double exponent = (static_cast<double>(row(i)) - largest) / draw.temperature;
    // Smaller weights round to 0.
    w.data[i] = exponent < -25 ? 0 : __double2ull_rn(exp(exponent) * 0x1p34);
  }
  __syncthreads();
  if (draw.top_k > 1 && draw.top_k < row.count) {
    const RadixThreshold kth = radix_select(w, true, static_cast<Sum>(draw.top_k - 1), shared);
    if (kth.weight > 0) w.threshold = kth.weight;
  }
  Sum total = zero_excluded(w, shared);
  if (draw.top_p > 0) {
    const double limit = draw.top_p * static_cast<double>(total);
    // An integer sum exceeds the limit if it exceeds the integer part of the limit.
    const RadixThreshold at = radix_select(w, false, static_cast<Sum>(limit), shared);
    if (at.weight > 0) {
      w.threshold = at.weight;
      w.num_ties = (static_cast<Sum>(limit) - at.above) / at.weight + 1;
      total = zero_excluded(w, shared);
      w.num_ties = ~Sum{0};
    }
  }
  if (draw.min_p > 0) {
    const auto threshold = static_cast<Sum>(ceil(draw.min_p * 0x1p34));
    if (threshold > w.threshold) {
      w.threshold = threshold;
      total = zero_excluded(w, shared);
    }
  }

  const double target = draw.uniform * static_cast<double>(total);
  const PrefixSumSegment segment(row.count);
  Sum own = 0;
  for (int i = segment.begin; i < segment.end; ++i) own += w.data[i];
  Sum all = 0;
  Sum before = exclusive_prefix_sum(own, all, shared);
  // The product may round up to the total: then the last candidate is drawn.
  const bool is_beyond = target >= static_cast<double>(total);
  const bool is_mine = is_beyond ? own > 0 && before + own == total
                                 : static_cast<double>(before) <= target &&
                                       static_cast<double>(before + own) > target;
  if (is_mine) {
    for (int i = segment.begin; i < segment.end; ++i) {
      if (w.data[i] == 0) continue;
      before += w.data[i];
      shared.token = i;
      if (static_cast<double>(before) > target) break;
    }
  }
  __syncthreads();
}

// Block sum in a fixed order; every thread gets the result.
__device__ double block_sum(double value, DrawShared& shared) {
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) shared.sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  double total = 0;
  for (int w = 0; w < kDrawBlock / kWarp; ++w) total += shared.sums[w];
  __syncthreads();
  return total;
}

// Writes the log-probabilities of the row's token and of the most probable of the first `known`
// tokens.
__device__ void find_probabilities(TokenLogProbability* found, const Row& row, int known,
                                   int num_found, DrawShared& shared) {
  TopLogit top;
  top.consider_row(row.logits, row.first, known);
  top = top.block_reduced(shared);
  const auto largest = static_cast<double>(logit_of(top.best));
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
      found[n] = top.best > 0
                     ? TokenLogProbability{static_cast<double>(logit_of(top.best)) - log_sum,
                                           index_of(top.best)}
                     : TokenLogProbability{0, kNoToken};
    }
    if (n + 1 == num_found) return;
    TopLogit next;
    next.limit = top.best;
    next.consider_row(row.logits, row.first, known);
    top = next.block_reduced(shared);
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
  find_probabilities(probabilities + index * kMaxLogProbabilities, row,
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
