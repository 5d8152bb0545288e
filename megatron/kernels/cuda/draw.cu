#include "megatron/kernels/draw.h"

#include "megatron/kernels/cuda/attention_problem.cuh"
#include "megatron/kernels/cuda/launch.cuh"

// A block draws the token of a row. Weights are whole numbers of kWeightBits + 1 bits. The weight
// at which a sum from the largest weight down crosses a limit is found digit by digit (a radix
// selection), with a histogram of the weights that share the digits found so far.
namespace megatron::kernels::cuda {
namespace {

using Sum = unsigned long long;

constexpr int kBlock = 1024;
constexpr int kDigitBits = 12;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsOfThread = kBins / kBlock;
constexpr int kDigits = 3;
static_assert(kDigits * kDigitBits > kWeightBits);

struct Shared {
  Sum bins[kBins];
  Sum warps[kWarp];
  Sum found_above;
  int found_bin;
};

// The sum of the values of the threads before this one; `total` is that of all.
__device__ Sum sum_before(Sum value, Sum& total, Shared& shared) {
  const unsigned lane = threadIdx.x % kWarp;
  Sum sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Sum other = __shfl_up_sync(kFullMask, sum, step);
    if (lane >= static_cast<unsigned>(step)) sum += other;
  }
  if (lane == kWarp - 1) shared.warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  Sum before = 0;
  total = 0;
  for (unsigned w = 0; w < kBlock / kWarp; ++w) {
    if (w == threadIdx.x / kWarp) before = total;
    total += shared.warps[w];
  }
  __syncthreads();
  return before + sum - value;
}

// A row's weights, of which those from `least` on still compete, and of those equal to `least` the
// first `num_least`.
struct Weights {
  Sum* data;
  int count;
  Sum least = 1;
  Sum num_least = ~Sum{0};
};

// Where a sum over weights from the largest down first exceeds a limit.
struct Crossing {
  Sum weight;  // 0: nowhere
  Sum above;   // the sum over larger weights
};

// Sums 1 for each competing weight if `counts`, else the weight.
__device__ Crossing crossing(const Weights& w, bool counts, Sum limit, Shared& shared) {
  Crossing found{0, 0};
  for (int digit = kDigits - 1; digit >= 0; --digit) {
    const int shift = digit * kDigitBits;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kBlock) shared.bins[i] = 0;
    if (threadIdx.x == 0) shared.found_bin = -1;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < w.count; i += kBlock) {
      const Sum weight = w.data[i];
      if (weight < w.least) continue;
      if (weight >> (shift + kDigitBits) != found.weight >> (shift + kDigitBits)) continue;
      atomicAdd(&shared.bins[weight >> shift & (kBins - 1)], counts ? Sum{1} : weight);
    }
    __syncthreads();
    // Thread 0 has the largest digits.
    const int first_bin = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
    Sum own = 0;
    for (int i = 0; i < kBinsOfThread; ++i) own += shared.bins[first_bin - i];
    Sum total = 0;
    Sum before = found.above + sum_before(own, total, shared);
    if (before <= limit && before + own > limit) {
      int bin = first_bin;
      while (before + shared.bins[bin] <= limit) before += shared.bins[bin--];
      shared.found_bin = bin;
      shared.found_above = before;
    }
    __syncthreads();
    if (shared.found_bin < 0) return {0, 0};
    found.weight |= static_cast<Sum>(shared.found_bin) << shift;
    found.above = shared.found_above;
    __syncthreads();
  }
  return found;
}

// The weights of a thread: adjacent ones, so that sums are in the order of indices.
struct Stretch {
  int begin, end;
  __device__ explicit Stretch(int count) {
    const int each = (count + kBlock - 1) / kBlock;
    begin = min(static_cast<int>(threadIdx.x) * each, count);
    end = min(begin + each, count);
  }
};

// Zeroes all weights that do not compete, and returns the sum of the others.
__device__ Sum drop_losers(const Weights& w, Shared& shared) {
  const Stretch mine(w.count);
  Sum ties = 0;
  for (int i = mine.begin; i < mine.end; ++i) ties += w.data[i] == w.least ? 1 : 0;
  Sum total = 0;
  Sum rank = sum_before(ties, total, shared);
  Sum sum = 0;
  for (int i = mine.begin; i < mine.end; ++i) {
    const Sum weight = w.data[i];
    const bool is_tie = weight == w.least;
    if (weight < w.least || (is_tie && rank >= w.num_least)) {
      w.data[i] = 0;
    } else {
      sum += weight;
    }
    if (is_tie) ++rank;
  }
  sum_before(sum, total, shared);
  return total;
}

struct Largest {
  float logit;
  int index;  // the lowest
  bool has_nan;
};

// The largest of the logits that a thread has seen, ordered as numbers, then by the lower index.
struct Leader {
  Sum best = 0;
  bool has_nan = false;

  __device__ void see(float logit, int index) {
    has_nan = has_nan || logit != logit;
    const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);
    const uint32_t order = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    const Sum key = Sum{order} << 32 | static_cast<uint32_t>(~index);
    best = key > best ? key : best;
  }
  template <int N>
  __device__ void see_pack(const AnyInput& logits, int64_t first, int index) {
    float values[N];
    logits.read(values, first + index);
#pragma unroll
    for (int i = 0; i < N; ++i) see(values[i], index + i);
  }
};

__device__ Largest largest_of(const AnyInput& logits, int64_t first, int count, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_wide = first % kVector == 0 && reinterpret_cast<uintptr_t>(logits.data) % 16 == 0;
  const int wide_end = is_wide ? count / kVector * kVector : 0;
  Leader leader;
#pragma unroll 4
  for (int i = thread * kVector; i < wide_end; i += kBlock * kVector) {
    leader.see_pack<kVector>(logits, first, i);
  }
  for (int i = wide_end + thread; i < count; i += kBlock) leader.see_pack<1>(logits, first, i);
  Sum best = leader.best;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Sum other = __shfl_xor_sync(kFullMask, best, step);
    best = other > best ? other : best;
  }
  if (threadIdx.x % kWarp == 0) shared.warps[threadIdx.x / kWarp] = best;
  const bool has_nan = __syncthreads_or(leader.has_nan) != 0;
  for (unsigned w = 0; w < kBlock / kWarp; ++w) {
    best = shared.warps[w] > best ? shared.warps[w] : best;
  }
  __syncthreads();
  const auto order = static_cast<uint32_t>(best >> 32);
  const uint32_t bits = order >> 31 != 0 ? order & 0x7fffffffu : ~order;
  return {__uint_as_float(bits), static_cast<int>(~static_cast<uint32_t>(best)), has_nan};
}

__global__ void __launch_bounds__(kBlock)
    draw_kernel(int32_t* tokens, AnyInput logits, const Draw* draws, Sum* workspace, int64_t v) {
  __shared__ Shared shared;
  const int64_t row = blockIdx.x;
  const Draw draw = draws[row];
  const int count = static_cast<int>(draw.vocab_size < v ? draw.vocab_size : v);
  const Largest largest = largest_of(logits, row * v, count, shared);
  if (count == 0 || largest.has_nan || draw.top_k == 1) {
    if (threadIdx.x > 0) return;
    tokens[row] = count == 0 || largest.has_nan ? kNoToken : largest.index;
    return;
  }

  Weights w{workspace + row * v, count};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlock) {
    float logit[1];
    logits.read(logit, row * v + i);
    const double exponent =
        (static_cast<double>(logit[0]) - static_cast<double>(largest.logit)) / draw.temperature;
    // Below half of a unit it rounds to 0.
    w.data[i] = exponent < -25 ? 0 : __double2ull_rn(exp(exponent) * 0x1p34);
  }
  __syncthreads();
  if (draw.top_k > 1 && draw.top_k < count) {
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
  const Stretch mine(count);
  Sum own = 0;
  for (int i = mine.begin; i < mine.end; ++i) own += w.data[i];
  Sum all = 0;
  Sum before = sum_before(own, all, shared);
  // The product may round to the sum itself: then the last weight is drawn.
  const bool is_beyond = target >= static_cast<double>(total);
  const bool is_mine = is_beyond ? own > 0 && before + own == total
                                 : static_cast<double>(before) <= target &&
                                       static_cast<double>(before + own) > target;
  if (!is_mine) return;
  int32_t token = largest.index;
  for (int i = mine.begin; i < mine.end; ++i) {
    if (w.data[i] == 0) continue;
    before += w.data[i];
    token = i;
    if (static_cast<double>(before) > target) break;
  }
  tokens[row] = token;
}

}  // namespace

void draw_tokens(TensorView tokens, ConstView logits, ConstView draws, TensorView workspace,
                 Stream stream) {
  if (logits.size(0) == 0) return;
  draw_kernel<<<static_cast<unsigned>(logits.size(0)), kBlock, 0, native(stream)>>>(
      tokens.as<int32_t>(), any_input(logits, "draw_tokens"), static_cast<const Draw*>(draws.data),
      static_cast<Sum*>(workspace.data), logits.size(1));
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
