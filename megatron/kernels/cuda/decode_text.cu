#include "megatron/kernels/decode_text.h"

#include <algorithm>
#include <numeric>

#include "megatron/core/error.h"
#include "megatron/device/cuda/check.h"
#include "megatron/kernels/cuda/activation.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/decode_text_attention.cuh"
#include "megatron/kernels/cuda/exchange.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/mma.cuh"
#include "megatron/kernels/cuda/weight_ring.cuh"

namespace megatron::kernels::cuda {
namespace text {
namespace {

constexpr int kMaxColumns = 1024;  // of a slot of the ring
[[maybe_unused]] constexpr int kSteps = (kMaxColumns / 16 + kWarps - 1) / kWarps;
constexpr int kNormFours = 4;      // four numbers each, that a thread norms
constexpr int kHeadRows = 64;      // of logits between two reductions
constexpr int kKeysOfSplit = 256;  // a head with more is divided among blocks
constexpr int kFewestSlots = WeightRing::kUnderWay + 1;

Places places_of(const DecodeTextShape& s, int splits) {
  const auto rounded = [](int64_t n) { return static_cast<int>((n + 3) / 4 * 4); };
  Places p{};
  p.x = 4;  // after the number of the first tag
  p.qkv = p.x + rounded(s.hidden / 2);
  p.attention = p.qkv + rounded((s.heads + 2 * s.groups) * s.d / 2);
  p.middle = p.attention + rounded(s.heads * s.d / 2);
  p.activated = p.middle + rounded(s.hidden / 2);
  p.parts = p.activated + rounded(s.ffn / 2);
  p.end = p.parts + rounded(s.heads * splits * (s.d + 2));
  return p;
}

// The dynamic shared memory: the slots, and after them what shared_bytes() counts.
int64_t shared_bytes(const DecodeTextShape& s, int64_t part_rows) {
  const int64_t widest = std::max({s.hidden, s.heads * s.d, s.ffn});
  return widest * 2 + s.hidden * 2 + kWarps * part_rows * 4 +
         s.layers * static_cast<int64_t>(sizeof(DecodeTextLayer));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // other code has an empty kernel

__device__ float activated(Activation activation, float x1, float x2) {
  switch (activation) {
    case Activation::kGeluTanh:
      return GeluTanh::value(x1);
    case Activation::kGeluErf:
      return GeluErf<2>::value(x1);
    case Activation::kGeluOnnx:
      return GeluErf<0>::value(x1);
    case Activation::kSquaredRelu:
      return SquaredRelu::value(x1);
    case Activation::kRelu:
      return Relu::value(x1);
    case Activation::kSwiglu:
      return Silu::value(x1) * x2;
    case Activation::kGeglu:
      return x1 * GeluErf<2>::value(x2);
    case Activation::kLiglu:
      return x1 * x2;
    case Activation::kReglu:
      return x1 * Relu::value(x2);
    case Activation::kSwigluSecond:
      return x1 * Silu::value(x2);
    case Activation::kGegluTanh:
      return x1 * GeluTanh::value(x2);
  }
  return 0;
}

__device__ RowPart part_of(int64_t rows, unsigned place, unsigned blocks) {
  const int64_t pairs = rows / 2;
  const auto begin = static_cast<int>(pairs * place / blocks);
  const auto end = static_cast<int>(pairs * (place + 1) / blocks);
  // An odd last row, of a vocabulary, is the last block's.
  const int odd = place + 1 == blocks ? static_cast<int>(rows % 2) : 0;
  return {begin * 2, (end - begin) * 2 + odd};
}

// The rows of each matrix that are this block's. Blocks that have a row more of one matrix are
// others than those of the next.
struct BlockParts {
  RowPart qkv, proj, fc1, fc2, head;

  __device__ void divide(const DecodeTextShape& s) {
    const unsigned blocks = gridDim.x;
    const auto turned = [&](unsigned quarter) {
      return (blockIdx.x + blocks * quarter / 4) % blocks;
    };
    qkv = part_of((s.heads + 2 * s.groups) * s.d, turned(0), blocks);
    proj = part_of(s.hidden, turned(1), blocks);
    fc1 = part_of(s.ffn, turned(2), blocks);
    fc2 = part_of(s.hidden, turned(3), blocks);
    head = part_of(s.vocabulary, turned(0), blocks);
  }
};

// The warp that copies weights.
__device__ void copy_weights(const Parameters& p, const DecodeTextLayer* layers, WeightRing ring,
                             const BlockParts& parts) {
  const DecodeTextShape& s = p.shape;
  const auto hidden = static_cast<int>(s.hidden);
  const auto ffn = static_cast<int>(s.ffn);
  for (int64_t i = 0; i < s.layers; ++i) {
    const DecodeTextLayer& layer = layers[i];
    ring.fill(layer.qkv_weight, parts.qkv, hidden);
    ring.fill(layer.proj_weight, parts.proj, static_cast<int>(s.heads * s.d));
    ring.fill(layer.fc1_weight, parts.fc1, hidden);
    if (is_gated(s.activation)) {
      ring.fill(layer.fc1_weight, {parts.fc1.begin + ffn, parts.fc1.count}, hidden);
    }
    ring.fill(layer.fc2_weight, parts.fc2, ffn);
  }
  for (int row = 0; row < parts.head.count; row += kHeadRows) {
    ring.fill(p.head_weight, {parts.head.begin + row, min(kHeadRows, parts.head.count - row)},
              hidden);
  }
}

// The warps that compute. In shared memory: the vector that is multiplied, the residual sums, and
// for each warp its part of the products of all rows.
template <class T, int kHead>
struct Worker {
  const Parameters& p;
  const DecodeTextShape& s;
  WeightRing ring;
  uint32_t *input, *residual;  // pairs
  float* products;             // [warps, part rows]
  float* sums;                 // [warps, kHead + 2]
  float* qkv;                  // [3, kHead]
  int thread, warp, lane;

  // products[warp, row] = what the warp's columns of a part of weight [.., k] contribute.
  __device__ __forceinline__ void multiply(const RowPart& part, int k, int row = 0) {
    const int steps = ring.columns / 16;
    for (int tile = 0; tile < part.tiles(); ++tile) {
      const int first = part.first(tile);
      const int rows = part.first(tile + 1) - first;
      const int own = min(lane % 16, rows - 1);
      float c[2][4] = {};
      for (int column = 0; column < k; column += ring.columns) {
        uint32_t b[kSteps][2];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const int step = warp + i * kWarps;
          const bool has = step < steps && lane < 4;
          const uint32_t* const x = input + column / 2 + step * 8 + lane;
          b[i][0] = has ? x[0] : 0;
          b[i][1] = has ? x[4] : 0;
        }
        barrier::wait(ring.full_barrier(), ring.parity);
        const uint32_t at =
            ring.place() + static_cast<uint32_t>(own * WeightRing::row_bytes(ring.columns) +
                                                 lane / 16 * 16 + warp * 32);
        uint32_t a[kSteps][4];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          if (i * kWarps >= steps) continue;  // b is 0 beyond the last step
          asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                       : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                       : "r"(at + static_cast<uint32_t>(min(i * kWarps, steps - 1 - warp) * 32))
                       : "memory");
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          if (i * kWarps < steps) multiply_add<T>(c[i % 2], a[i], b[i][0], b[i][1]);
        }
        __syncwarp();
        if (lane == 0) barrier::arrive(ring.empty_barrier());
        ring.advance();
      }
      if (lane % 4 != 0) continue;
      float* const to = products + warp * p.part_rows + row + first + lane / 4;
      if (lane / 4 < rows) to[0] = c[0][0] + c[1][0];
      if (lane / 4 + 8 < rows) to[8] = c[0][2] + c[1][2];
    }
  }
  // The sum over the warps.
  __device__ __forceinline__ float product(int row) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += products[w * p.part_rows + row];
    return sum;
  }
  __device__ __forceinline__ float2 product_pair(int pair) const {
    return {product(2 * pair), product(2 * pair + 1)};
  }

  // A pair of a bias.
  __device__ __forceinline__ static float2 pair_of(const void* bias, int64_t pair) {
    if (bias == nullptr) return {0, 0};
    return two_floats<T>(load_now(static_cast<const uint32_t*>(bias) + pair));
  }

  // The sum of a number of each worker, on every worker. REQUIRES: workers_barrier() is called
  // between two sums of one `turn`.
  __device__ __forceinline__ float sum_of_workers(float value, int turn) {
    value = warp_sum(value);
    float* const of_warps = sums + turn * kWarps;
    if (lane == 0) of_warps[warp] = value;
    workers_barrier();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w];
    return sum;
  }

  // residual = the vector at `place`, or p.x; input = its norm.
  __device__ __forceinline__ void take_and_norm(int place, uint32_t tag, const void* weight,
                                                const void* bias) {
    const auto fours = static_cast<int>(s.hidden / 4);
    uint2 weights[kNormFours], biases[kNormFours];
#pragma unroll
    for (int i = 0; i < kNormFours; ++i) {
      const int at = thread + i * kWorkers;
      const bool exists = at < fours;
      weights[i] = exists ? load_now(static_cast<const uint2*>(weight) + at) : uint2{};
      biases[i] =
          exists && bias != nullptr ? load_now(static_cast<const uint2*>(bias) + at) : uint2{};
    }
    MessagePair pairs[kNormFours];  // all are asked for before the first is waited for
#pragma unroll
    for (int i = 0; i < kNormFours; ++i) {
      const int at = thread + i * kWorkers;
      if (at < fours && place != 0) pairs[i] = look(pairs_at(p, place) + at);
    }
    float4 x[kNormFours];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kNormFours; ++i) {
      const int at = thread + i * kWorkers;
      x[i] = {};
      if (at >= fours) continue;
      uint2 four;
      if (place == 0) {
        four = load_now(static_cast<const uint2*>(p.x) + at);
      } else {
        if (!has_come(pairs[i], tag)) pairs[i] = receive(pairs_at(p, place) + at, tag);
        four = {pairs[i].first.data, pairs[i].second.data};
      }
      reinterpret_cast<uint2*>(residual)[at] = four;
      x[i] = four_floats<T>(four);
      sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
    }
    const auto size = static_cast<float>(s.hidden);
    const float mean = s.is_rms_norm ? 0 : sum_of_workers(sum, 0) / size;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kNormFours; ++i) {
      if (thread + i * kWorkers >= fours) continue;
      x[i] = {x[i].x - mean, x[i].y - mean, x[i].z - mean, x[i].w - mean};
      squares += (x[i].x * x[i].x + x[i].y * x[i].y) + (x[i].z * x[i].z + x[i].w * x[i].w);
    }
    const float factor = rsqrtf(sum_of_workers(squares, 1) / size + s.epsilon);
#pragma unroll
    for (int i = 0; i < kNormFours; ++i) {
      const int at = thread + i * kWorkers;
      if (at >= fours) continue;
      float4 w = four_floats<T>(weights[i]);
      if (s.one_plus_weight) w = {w.x + 1, w.y + 1, w.z + 1, w.w + 1};
      const float4 b = four_floats<T>(biases[i]);
      reinterpret_cast<uint2*>(input)[at] = {
          pack_two<T>(x[i].x * factor * w.x + b.x, x[i].y * factor * w.y + b.y),
          pack_two<T>(x[i].z * factor * w.z + b.z, x[i].w * factor * w.w + b.w)};
    }
    workers_barrier();
  }
  __device__ __forceinline__ void take_input(int place, int64_t pairs, uint32_t tag) {
    receive_all<4>(pairs_at(p, place), static_cast<int>(pairs / 2), tag, thread, kWorkers,
                   [&](int at, const MessagePair& pair) {
                     input[2 * at] = pair.first.data;
                     input[2 * at + 1] = pair.second.data;
                   });
    workers_barrier();
  }

  // Sends the residual sums of the part's rows.
  __device__ __forceinline__ void send_sums(int place, const RowPart& part, float2 bias,
                                            uint32_t tag) {
    workers_barrier();
    if (thread < part.count / 2) {
      const int pair = part.begin / 2 + thread;
      const float2 x = two_floats<T>(residual[pair]);
      const float2 y = product_pair(thread);
      send(p.messages + place + pair, pack_two<T>(x.x + y.x + bias.x, x.y + y.y + bias.y), tag);
    }
    workers_barrier();
  }

  __device__ __forceinline__ void run(const DecodeTextLayer* layers, const BlockParts& parts,
                                      uint32_t first_tag) {
    const Places& places = p.places;
    const TextAttention<T, kHead> attention{
        .p = p, .sums = sums, .qkv = qkv, .thread = thread, .warp = warp, .lane = lane};
    const auto hidden = static_cast<int>(s.hidden);
    const auto ffn = static_cast<int>(s.ffn);
    uint32_t tag = first_tag;
    for (int64_t i = 0; i < s.layers; ++i) {
      const DecodeTextLayer& layer = layers[i];
      attention.prefetch(layer);
      const float2 qkv_bias = own_bias(layer.qkv_bias, parts.qkv);
      take_and_norm(i == 0 ? 0 : places.x, tag, layer.input_norm_weight, layer.input_norm_bias);
      tag += 1;
      multiply(parts.qkv, hidden);
      workers_barrier();
      if (thread < parts.qkv.count / 2) {
        const float2 y = product_pair(thread);
        send(p.messages + places.qkv + parts.qkv.begin / 2 + thread,
             pack_two<T>(y.x + qkv_bias.x, y.y + qkv_bias.y), tag);
      }
      attention.attend(layer, tag);

      const float2 proj_bias = own_bias(layer.proj_bias, parts.proj);
      take_input(places.attention, s.heads * s.d / 2, tag);
      multiply(parts.proj, static_cast<int>(s.heads * s.d));
      send_sums(places.middle, parts.proj, proj_bias, tag);

      const bool gated = is_gated(s.activation);
      const float2 fc1_bias = own_bias(layer.fc1_bias, parts.fc1);
      const RowPart second{parts.fc1.begin + ffn, parts.fc1.count};
      const float2 second_bias = gated ? own_bias(layer.fc1_bias, second) : float2{0, 0};
      take_and_norm(places.middle, tag, layer.mlp_norm_weight, layer.mlp_norm_bias);
      multiply(parts.fc1, hidden);
      if (gated) multiply(second, hidden, parts.fc1.count);
      workers_barrier();
      if (thread < parts.fc1.count / 2) {
        const float2 y = product_pair(thread);
        float2 z{0, 0};
        if (gated) z = product_pair(parts.fc1.count / 2 + thread);
        const float first =
            activated(s.activation, rounded<T>(y.x) + fc1_bias.x, rounded<T>(z.x) + second_bias.x);
        const float next =
            activated(s.activation, rounded<T>(y.y) + fc1_bias.y, rounded<T>(z.y) + second_bias.y);
        send(p.messages + places.activated + parts.fc1.begin / 2 + thread, pack_two<T>(first, next),
             tag);
      }

      const float2 fc2_bias = own_bias(layer.fc2_bias, parts.fc2);
      take_input(places.activated, s.ffn / 2, tag);
      multiply(parts.fc2, ffn);
      send_sums(places.x, parts.fc2, fc2_bias, tag);
    }
    take_and_norm(places.x, tag, p.final_norm_weight, p.final_norm_bias);
    for (int row = 0; row < parts.head.count; row += kHeadRows) {
      const RowPart part{parts.head.begin + row, min(kHeadRows, parts.head.count - row)};
      multiply(part, hidden);
      workers_barrier();
      if (thread < part.count) {
        static_cast<T*>(p.logits)[part.begin + thread] = from_float<T>(product(thread));
      }
      workers_barrier();
    }
  }
  // The bias of the pair of rows whose product this thread sends.
  __device__ __forceinline__ float2 own_bias(const void* bias, const RowPart& part) const {
    if (thread >= part.count / 2) return {0, 0};
    return pair_of(bias, part.begin / 2 + thread);
  }
};

#endif

template <class T, int kHead>
__global__ void __launch_bounds__(kWorkers + kWarp, 1)
    decode_text_kernel(const __grid_constant__ Parameters p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ uint64_t barriers[2 * 64];
  __shared__ float sums[kWarps * (kHead + 2)];
  __shared__ __align__(16) float qkv[3 * kHead];
  const DecodeTextShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);

  WeightRing ring{.full = shared_address(barriers),
                  .empty = shared_address(barriers + p.slots),
                  .data = shared_address(shared),
                  .slots = p.slots,
                  .columns = p.columns};
  unsigned char* at = shared + p.slots * WeightRing::slot_bytes(p.columns);
  const auto take = [&](int64_t bytes) {
    unsigned char* const taken = at;
    at += bytes;
    return taken;
  };
  auto* const layers = reinterpret_cast<DecodeTextLayer*>(
      take(s.layers * static_cast<int64_t>(sizeof(DecodeTextLayer))));
  const int64_t attended = s.heads * s.d;
  const int64_t wider = s.hidden > attended ? s.hidden : attended;
  auto* const input = reinterpret_cast<uint32_t*>(take((wider > s.ffn ? wider : s.ffn) * 2));
  auto* const residual = reinterpret_cast<uint32_t*>(take(s.hidden * 2));
  auto* const products = reinterpret_cast<float*>(at);

  const auto words = static_cast<int>(s.layers * static_cast<int64_t>(sizeof(DecodeTextLayer)) / 8);
  for (int i = thread; i < words; i += static_cast<int>(blockDim.x)) {
    reinterpret_cast<uint64_t*>(layers)[i] = reinterpret_cast<const uint64_t*>(p.layers)[i];
  }
  if (thread == 0) {
    for (int i = 0; i < p.slots; ++i) {
      barrier::init(ring.full + static_cast<uint32_t>(i) * 8, 1);
      barrier::init(ring.empty + static_cast<uint32_t>(i) * 8, kWarps);
    }
    barrier::make_visible();
  }
  const uint32_t tag = look(reinterpret_cast<const MessagePair*>(p.messages)).first.data + 1;
  __syncthreads();
  __shared__ BlockParts parts;
  if (thread == 0) parts.divide(s);
  __syncthreads();
  if (thread >= kWorkers) return copy_weights(p, layers, ring, parts);
  Worker<T, kHead> worker{.p = p,
                          .s = s,
                          .ring = ring,
                          .input = input,
                          .residual = residual,
                          .products = products,
                          .sums = sums,
                          .qkv = qkv,
                          .thread = thread,
                          .warp = thread / kWarp,
                          .lane = thread % kWarp};
  worker.run(layers, parts, tag);
  // All blocks have read the first tag: this one has had messages of each.
  if (blockIdx.x == 0 && thread == 0) p.messages[0].data = tag + static_cast<uint32_t>(s.layers);
#endif
}

using Kernel = void (*)(Parameters);
template <class T>
Kernel kernel_of(int64_t d) {
  return d == 64 ? decode_text_kernel<T, 64> : decode_text_kernel<T, 128>;
}
Kernel kernel_of(const DecodeTextShape& s) {
  return s.dtype == DType::kBFloat16 ? kernel_of<BFloat16>(s.d) : kernel_of<Float16>(s.d);
}

// How the kernel divides its work; no blocks: it cannot.
struct Division {
  int64_t blocks = 0, columns = 0, slots = 0, part_rows = 0, bytes = 0;
};
Division division_of(const DecodeTextShape& s, Device device) {
  const bool has_type = s.dtype == DType::kBFloat16 || s.dtype == DType::kFloat16;
  if (!has_type || (s.d != 64 && s.d != 128) || s.groups == 0) return {};
  if (s.hidden > int64_t{kNormFours} * 4 * kWorkers || s.hidden % 16 != 0 || s.ffn % 16 != 0) {
    return {};
  }
  // Who sends nothing could fall behind: each block has rows of each matrix.
  Division division;
  division.blocks =
      std::min<int64_t>(multiprocessors(device), std::min({s.hidden, s.ffn, s.vocabulary}) / 2);
  if (s.heads > division.blocks) return {};
  const int64_t common = std::gcd(std::gcd(s.hidden, s.ffn), s.heads * s.d);
  for (int64_t columns = 16; columns <= std::min<int64_t>(common, kMaxColumns); columns += 16) {
    if (common % columns == 0) division.columns = columns;
  }
  const auto rows = [&](int64_t all) { return 2 * (all / 2 / division.blocks + 1); };
  division.part_rows = std::max({rows((s.heads + 2 * s.groups) * s.d),
                                 rows(s.ffn) * (is_gated(s.activation) ? 2 : 1), rows(s.hidden),
                                 int64_t{kHeadRows}});
  const void* const kernel = reinterpret_cast<const void*>(kernel_of(s));
  cudaFuncAttributes attributes{};
  MG_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  const int64_t room = max_shared_bytes(device) - static_cast<int64_t>(attributes.sharedSizeBytes) -
                       shared_bytes(s, division.part_rows);
  const int64_t slot = WeightRing::slot_bytes(static_cast<int>(division.columns));
  division.slots = std::clamp<int64_t>(room / slot, 0, 64);
  if (division.slots < kFewestSlots || division.part_rows > 2 * kWorkers) return {};
  division.bytes = division.slots * slot + shared_bytes(s, division.part_rows);
  return division;
}

int64_t most_splits(const DecodeTextShape& s, int64_t blocks) { return blocks / s.heads; }

}  // namespace
}  // namespace text

int64_t decode_text_workspace_bytes(const DecodeTextShape& shape) {
  constexpr int64_t kMostBlocks = 256;
  const auto splits = static_cast<int>(text::most_splits(shape, kMostBlocks));
  return int64_t{text::places_of(shape, splits).end} * static_cast<int64_t>(sizeof(Message));
}

bool has_decode_text(const DecodeTextShape& shape, Device device) {
  const bool has_type = shape.dtype == DType::kBFloat16 || shape.dtype == DType::kFloat16;
  if (!has_type || !has_clusters(reinterpret_cast<const void*>(text::kernel_of(shape)), device)) {
    return false;
  }
  return text::division_of(shape, device).blocks > 0;
}

void decode_text(TensorView logits, ConstView x, const DecodeText& text, ConstView pages,
                 ConstView length, int64_t max_length, TensorView workspace, Stream stream) {
  const DecodeTextShape& s = text.shape;
  const text::Division division = text::division_of(s, stream.device);
  invariant(division.blocks > 0, "decode_text: has_decode_text() is asked first");
  const int64_t splits =
      std::clamp<int64_t>((max_length + text::kKeysOfSplit - 1) / text::kKeysOfSplit, 1,
                          text::most_splits(s, division.blocks));
  const text::Parameters parameters{
      .shape = s,
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
      .length = static_cast<const int32_t*>(length.data),
      .messages = static_cast<Message*>(workspace.data),
      .places = text::places_of(s, static_cast<int>(splits)),
      .splits = static_cast<int>(splits),
      .columns = static_cast<int>(division.columns),
      .slots = static_cast<int>(division.slots),
      .part_rows = static_cast<int>(division.part_rows)};
  const text::Kernel kernel = text::kernel_of(s);
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int>(division.bytes),
                     stream.device);
  // Blocks wait for each other, so that all of them have to run at once.
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(division.blocks);
  config.blockDim = text::kWorkers + kWarp;
  config.dynamicSmemBytes = static_cast<size_t>(division.bytes);
  config.stream = native(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  MG_CUDA(cudaLaunchKernelEx(&config, kernel, parameters));
}

}  // namespace megatron::kernels::cuda
