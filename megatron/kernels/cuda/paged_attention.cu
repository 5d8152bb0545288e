#include "megatron/kernels/paged_attention.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/fp8_pack.cuh"
#include "megatron/kernels/cuda/overlap.cuh"
#include "megatron/kernels/cuda/paged_problem.cuh"

// Paged attention for fp32 and for heads of more than 128 channels: kLanes lanes share a key, 8
// channels each. All other calls use tensor cores (paged_attention_tensor.cu).
namespace megatron::kernels::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kWarps = 8;
constexpr int kKeysOfPart = 128;
static_assert(kKeysOfPart >= kMinPagedKeys);
constexpr int kKeysOfWarp = kKeysOfPart / kWarps;

// Sum, and maximum, over the lanes that differ in bits [kFirst, kEnd); each of them gets it.
template <int kFirst, int kEnd>
__device__ __forceinline__ float sum_across(float x) {
#pragma unroll
  for (int step = kFirst; step < kEnd; step *= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}
template <int kFirst, int kEnd>
__device__ __forceinline__ float max_across(float x) {
#pragma unroll
  for (int step = kFirst; step < kEnd; step *= 2) {
    x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  }
  return x;
}

template <class T, int kLanes, int kHeads>
__global__ void __launch_bounds__(kWarps* kWarp) paged_kernel(const PagedProblem<T> p) {
  constexpr int kKeysAtOnce = kWarp / kLanes;
  constexpr int kSteps = kKeysOfWarp / kKeysAtOnce;
  constexpr int kWidth = kLanes * kVector;
  __shared__ __align__(16) float sums[kWarps][kHeads][kWidth];
  __shared__ float largest_of[kWarps][kHeads];
  __shared__ float total_of[kWarps][kHeads];

  const PagedBlockIndex at(p, kHeads);
  const int row = at.row;
  const int group = at.group;
  const int part = at.part;
  const int length = p.lengths[row];
  const int last = length - 1;
  const int stored = p.num_stored(length);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int channel = lane % kLanes * kVector;
  const int first_seen = p.first_key(length);
  const bool has_keys = part * kKeysOfPart < length && part >= p.first_part_of(length);
  const int first_key = part * kKeysOfPart + warp * kKeysOfWarp + lane / kLanes;
  const bool has_channels = channel < p.d;

  RawPack<T> keys[kSteps]{};
  RawPack<T> values[kSteps]{};
  if (has_keys) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int key = first_key + i * kKeysAtOnce;
      if (key >= stored || !has_channels) continue;
      keys[i] = load_pack(p.head_data(p.keys, row, group, key) + channel);
      values[i] = load_pack(p.head_data(p.values, row, group, key) + channel);
    }
  }
  let_next_kernel_start();
  wait_for_earlier_kernels();
  if (!has_keys) return;

  const int token = p.queries[row];
  if (stored < length && last / kKeysOfPart == part) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (first_key + i * kKeysAtOnce != last || !has_channels) continue;
      keys[i] = load_pack(p.k.row(0, group, token) + channel);
      values[i] = load_pack(p.v.row(0, group, token) + channel);
      if (at.chunk > 0) continue;
      store_pack(p.head_data(p.keys, row, group, last) + channel, keys[i]);
      store_pack(p.head_data(p.values, row, group, last) + channel, values[i]);
    }
  }
  float scores[kSteps][kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int head = at.first_head + min(h, at.num_heads - 1);
    Floats q{};
    if (has_channels) q = unpacked(load_pack(p.q.row(0, head, token) + channel));
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const Floats k = unpacked(keys[i]);
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kVector; ++c) sum = fmaf(q.values[c], k.values[c], sum);
      const int key = first_key + i * kKeysAtOnce;
      sum = sum_across<1, kLanes>(sum);
      scores[i][h] = key >= first_seen && key < length
                         ? (p.capped(sum * p.scale) + p.bias(head, key, length)) * kLog2E
                         : -infinity();
    }
  }

#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float largest = scores[0][h];
#pragma unroll
    for (int i = 1; i < kSteps; ++i) largest = fmaxf(largest, scores[i][h]);
    largest = max_across<kLanes, kWarp>(largest);
    float total = 0;
    Floats sum{};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float weight = exp2_fast(scores[i][h] - finite(largest));
      const Floats v = unpacked(values[i]);
      total += weight;
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        sum.values[c] = fmaf(weight, v.values[c], sum.values[c]);
      }
    }
    total = sum_across<kLanes, kWarp>(total);
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      sum.values[c] = sum_across<kLanes, kWarp>(sum.values[c]);
      if (lane < kLanes) sums[warp][h][channel + c] = sum.values[c];
    }
    if (lane == 0) {
      largest_of[warp][h] = largest;
      total_of[warp][h] = total;
    }
  }
  __syncthreads();

  finish_part<kWarps, kHeads>(p, at, token, length, largest_of, total_of,
                              [&](int w, int h) { return sums[w][h]; });
}

template <class T, int kLanes, int kHeads>
void launch(PagedProblem<T> p, int64_t rows, int64_t max_length, Stream stream) {
  const auto kernel = paged_kernel<T, kLanes, kHeads>;
  p.chunks = (p.heads / p.groups + kHeads - 1) / kHeads;
  p.divide(rows, max_length, kKeysOfPart);
  const bool overlaps = has_clusters(reinterpret_cast<const void*>(kernel), stream.device);
  launch_overlapped(kernel,
                    {.grid = dim3(static_cast<unsigned>(rows * p.groups * p.chunks),
                                  static_cast<unsigned>(p.max_parts)),
                     .block = dim3(kWarps * kWarp),
                     .overlaps = overlaps},
                    stream, p);
}

template <class F>
void dispatch_type(DType dtype, const F& f) {
  expect_floating(dtype, "paged_attention");
  if (dtype == DType::kBFloat16) return f.template operator()<BFloat16>();
  if (dtype == DType::kFloat16) return f.template operator()<Float16>();
  f.template operator()<float>();
}

void expect_whole_packs(const std::initializer_list<ConstHeadsView>& views) {
  for (const ConstHeadsView& x : views) {
    const auto is_whole = [](int64_t stride) { return stride % kVector == 0; };
    if (x.d <= 256 && is_whole(x.d) && is_whole(x.stride_s) && is_whole(x.stride_group) &&
        is_whole(x.stride_head) && is_aligned(x.data)) {
      continue;
    }
    throw Unsupported(
        "attention over pages on a GPU needs heads of 8, 16, .. 256 channels at "
        "multiples of 16 bytes; these have " +
        std::to_string(x.d) + " channels: use --device cpu");
  }
}

// Device view of the pages: keys and values of type S, heads of a token contiguous.
template <class S>
struct Pages {
  S* keys;
  S* values;
  float2* scales;
  int groups, d;

  explicit Pages(const KeyValuePages& pages)
      : keys(pages.keys.as<S>()),
        values(pages.values.as<S>()),
        scales(static_cast<float2*>(pages.scales.data)),
        groups(static_cast<int>(pages.keys.size(2))),
        d(static_cast<int>(pages.keys.size(3))) {}
};

// Stores keys and values of tokens into their slots. Block x has token x.
template <class T>
__global__ void __launch_bounds__(kThreads)
    put_kernel(Pages<T> pages, DeviceHeads<const T> k, DeviceHeads<const T> v,
               const int32_t* slots) {
  wait_for_earlier_kernels();
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int slot = slots[token];
  if (slot < 0) return;
  const int packs = pages.d / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < pages.groups * packs;
       i += static_cast<int>(blockDim.x)) {
    const int group = i / packs;
    const int channel = i % packs * kVector;
    const int64_t to = (int64_t{slot} * pages.groups + group) * pages.d + channel;
    store_pack(pages.keys + to, load_pack(k.row(0, group, token) + channel));
    store_pack(pages.values + to, load_pack(v.row(0, group, token) + channel));
  }
}

// The same with FP8 quantization; one warp for each head, whose packs are at most a warp's lanes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    put_fp8_kernel(Pages<Float8E4M3> pages, DeviceHeads<const T> k, DeviceHeads<const T> v,
                   const int32_t* slots) {
  wait_for_earlier_kernels();
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int slot = slots[token];
  if (slot < 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int channel = lane * kVector;
  for (int group = static_cast<int>(threadIdx.x) / kWarp; group < pages.groups;
       group += static_cast<int>(blockDim.x) / kWarp) {
    const int64_t head = int64_t{slot} * pages.groups + group;
    const auto put = [&](Float8E4M3* store, const T* from) {
      Floats pack{};
      if (channel < pages.d) pack = unpacked(load_pack(from + channel));
      const float scale = fp8_row_scale(warp_max(largest_of(pack)));
      if (channel < pages.d) {
        *reinterpret_cast<uint2*>(store + head * pages.d + channel) = fp8_numbers(pack, scale);
      }
      return scale;
    };
    const float key_scale = put(pages.keys, k.row(0, group, token));
    const float value_scale = put(pages.values, v.row(0, group, token));
    if (lane == 0) pages.scales[head] = {key_scale, value_scale};
  }
}

// Gathers keys and values of a row from its pages. Block x has token x of the row.
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    take_kernel(DeviceHeads<T> k, DeviceHeads<T> v, Pages<S> pages, const int32_t* row_pages,
                int page_tokens) {
  wait_for_earlier_kernels();
  const int token = static_cast<int>(blockIdx.x);
  const int64_t slot = int64_t{row_pages[token / page_tokens]} * page_tokens + token % page_tokens;
  const int packs = pages.d / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < pages.groups * packs;
       i += static_cast<int>(blockDim.x)) {
    const int group = i / packs;
    const int channel = i % packs * kVector;
    const int64_t head = slot * pages.groups + group;
    const auto taken = [&](const S* store, float scale) {
      const S* const from = store + head * pages.d + channel;
      if constexpr (std::is_same_v<S, T>) {
        return load_pack(from);
      } else {
        return packed<T>(fp8_elements(*reinterpret_cast<const uint2*>(from), scale));
      }
    };
    float2 scales{};
    if constexpr (!std::is_same_v<S, T>) scales = pages.scales[head];
    store_pack(k.row(0, group, token) + channel, taken(pages.keys, scales.x));
    store_pack(v.row(0, group, token) + channel, taken(pages.values, scales.y));
  }
}

// The slots of new tokens. A thread has a row.
__global__ void __launch_bounds__(kThreads)
    slots_kernel(int32_t* slots, const int32_t* pages, const int32_t* lengths,
                 const int32_t* queries, int rows, int max_pages, int page_tokens) {
  const auto row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows || lengths[row] == 0) return;
  const int at = lengths[row] - 1;
  const int page = pages[int64_t{row} * max_pages + at / page_tokens];
  slots[queries[row]] = page * page_tokens + at % page_tokens;
}

void expect_fp8_pages(DType dtype, int64_t d, Device device) {
  if (has_fp8_pages(dtype, d, device)) return;
  throw Unsupported(
      "keys and values in FP8 on a GPU need a model in 16 bits with heads of 16, 32, "
      ".. 128 channels; these have " +
      std::to_string(d) + " in " + std::string(name_of(dtype)));
}

// Calls f.operator()<T, S>() with the types of the model and of its pages.
template <class F>
void dispatch_pages(DType dtype, const KeyValuePages& pages, Device device, const F& f) {
  if (pages.has_scales()) expect_fp8_pages(dtype, pages.keys.size(3), device);
  dispatch_type(dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      if (pages.has_scales()) return f.template operator()<T, Float8E4M3>();
    }
    f.template operator()<T, T>();
  });
}

// Launches one block for each token, overlapped with earlier kernels.
template <class Kernel, class... Args>
void launch_for_tokens(Kernel kernel, int64_t tokens, Stream stream, const Args&... args) {
  launch_overlapped(
      kernel,
      {.grid = dim3(static_cast<unsigned>(tokens)),
       .block = dim3(kThreads),
       .overlaps = has_clusters(reinterpret_cast<const void*>(kernel), stream.device)},
      stream, args...);
}

}  // namespace

void paged_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q, ConstHeadsView k,
                     ConstHeadsView v, const PageTable& table, const PagedSettings& settings,
                     TensorView workspace, Stream stream) {
  const int64_t rows = table.lengths.numel();
  if (rows == 0 || table.max_length == 0) return;
  expect_whole_packs({out, q});
  if (k.data != nullptr) expect_whole_packs({k, v});
  const ConstView bias = settings.distance_bias;
  dispatch_pages(q.dtype, pages, stream.device, [&]<class T, class S>() {
    const PagedProblem<T, S> p{
        .pages = table.pages.as<int32_t>(),
        .lengths = table.lengths.as<int32_t>(),
        .queries = table.queries.as<int32_t>(),
        .keys = pages.keys.as<S>(),
        .values = pages.values.as<S>(),
        .scales = static_cast<float2*>(pages.scales.data),
        .out = heads_on_device<T>(out),
        .q = heads_on_device<const T>(q),
        .k = heads_on_device<const T>(k),
        .v = heads_on_device<const T>(v),
        .max_pages = static_cast<int>(table.pages.size(1)),
        .page_tokens = static_cast<int>(pages.page_tokens()),
        .heads = static_cast<int>(q.heads),
        .groups = static_cast<int>(pages.keys.size(2)),
        .chunks = 1,
        .d = static_cast<int>(q.d),
        .scale = settings.scale,
        .slopes = static_cast<const float*>(settings.alibi_slopes.data),
        .distance_bias = static_cast<const float*>(bias.data),
        .num_distances = bias.data == nullptr ? 0 : static_cast<int>(bias.size(1)),
        .window = static_cast<int>(std::min<int64_t>(settings.window, 1 << 30)),
        .logit_cap = settings.logit_cap,
        .sinks = static_cast<const float*>(settings.sinks.data),
        .counters = static_cast<int*>(workspace.data)};
    if constexpr (sizeof(T) == 2) {
      if (q.d <= 128) return tensor_paged_attention(p, rows, table.max_length, stream);
    }
    if constexpr (std::is_same_v<S, T>) {
      if (q.d <= 64) return launch<T, 8, 1>(p, rows, table.max_length, stream);
      if (q.d <= 128) return launch<T, 16, 1>(p, rows, table.max_length, stream);
      launch<T, 32, 1>(p, rows, table.max_length, stream);
    }
  });
}

void put_into_pages(const KeyValuePages& pages, ConstHeadsView k, ConstHeadsView v, ConstView slots,
                    Stream stream) {
  if (k.s == 0) return;
  expect_whole_packs({k, v});
  dispatch_pages(k.dtype, pages, stream.device, [&]<class T, class S>() {
    const auto kernel = [] {
      if constexpr (std::is_same_v<S, T>)
        return put_kernel<T>;
      else
        return put_fp8_kernel<T>;
    }();
    launch_for_tokens(kernel, k.s, stream, Pages<S>(pages), heads_on_device<const T>(k),
                      heads_on_device<const T>(v), slots.as<int32_t>());
  });
}

void new_token_slots(TensorView slots, const PageTable& table, int64_t page_tokens, Stream stream) {
  MG_CUDA(cudaMemsetAsync(slots.data, 0xff, static_cast<size_t>(slots.bytes()), native(stream)));
  const int64_t rows = table.lengths.numel();
  if (rows == 0) return;
  slots_kernel<<<blocks_for(rows, kThreads), kThreads, 0, native(stream)>>>(
      slots.as<int32_t>(), table.pages.as<int32_t>(), table.lengths.as<int32_t>(),
      table.queries.as<int32_t>(), static_cast<int>(rows), static_cast<int>(table.pages.size(1)),
      static_cast<int>(page_tokens));
  MG_CUDA(cudaGetLastError());
}

void take_from_pages(HeadsView k, HeadsView v, const KeyValuePages& pages, ConstView row_pages,
                     Stream stream) {
  if (k.s == 0) return;
  expect_whole_packs({k, v});
  dispatch_pages(k.dtype, pages, stream.device, [&]<class T, class S>() {
    launch_for_tokens(take_kernel<T, S>, k.s, stream, heads_on_device<T>(k), heads_on_device<T>(v),
                      Pages<S>(pages), row_pages.as<int32_t>(),
                      static_cast<int>(pages.page_tokens()));
  });
}

}  // namespace megatron::kernels::cuda
