#include "megatron/training/step_estimate.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "megatron/kernels/gelu_matmul.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/pipeline/schedule.h"
#include "megatron/training/context_estimate.h"
#include "megatron/training/flops.h"

namespace megatron {
namespace {

// Constants of one H200 from the times of whole iterations (docs/performance.md);
// tests/cli/plan_test.cpp compares each of those with its estimate. Other GPUs were not measured:
// their rates are these times the ratio of the peaks (gpu_roof.h).
constexpr double kMatmulFlops = 660e12;     // bf16, with as many products in a row as an iteration
constexpr double kFp8Flops = 1250e12;       // the same in FP8
constexpr double kCopyBytes = 4.3e12;       // read plus written
constexpr double kStreamEfficiency = 0.85;  // of fused elementwise kernels
constexpr double kUpdateEfficiency = 0.9;   // of kCopyBytes, reading gradients and state
constexpr double kFp32Flops = 50e12;        // of products in fp32: of the peak of 67e12
constexpr double kBusBytes = 50e9;          // between a GPU and its host
// Memory bandwidth of the host's update, for each of two ranks of a host: measured with 13B, ZeRO 3
// and offload (docs/zero.md).
constexpr double kHostBytes = 30e9;
constexpr double kLinkBytes = 342e9;        // of an NCCL all-reduce between H200s of one host
constexpr double kTransferSeconds = 45e-6;  // fixed cost of a collective
// The fixed cost of a transfer beside a product: GPUs wait for each other, and products in pieces
// are slower.
constexpr double kHiddenTransferSeconds = 35e-6;

struct Point {
  double x;
  double y;
};

// Linear interpolation between the points in log x, constant outside.
double interpolated(std::span<const Point> points, double x) {
  if (x <= points.front().x) return points.front().y;
  for (size_t i = 1; i < points.size(); ++i) {
    if (x > points[i].x) continue;
    const double part = std::log(x / points[i - 1].x) / std::log(points[i].x / points[i - 1].x);
    return points[i - 1].y + part * (points[i].y - points[i - 1].y);
  }
  return points.back().y;
}

// FLOP/s of cuDNN's causal attention with heads of 128, by sequence length.
constexpr Point kAttentionForward[] = {
    {1024, 322e12}, {2048, 421e12}, {4096, 514e12}, {8192, 560e12}, {16384, 586e12}};
constexpr Point kAttentionBackward[] = {
    {1024, 244e12}, {2048, 322e12}, {4096, 412e12}, {8192, 471e12}, {16384, 504e12}};
constexpr double kSmallHeads = 0.81;  // rate of heads of 64 relative to 128
// cuDNN's causal mask of fewer queries than keys, relative to that of as many (all_gather of
// 131,072 tokens).
constexpr double kOblongMask = 0.77;
// The rate of own kernels (dropout, ALiBi, documents) relative to cuDNN's.
constexpr double kOwnAttention = 0.72;
constexpr double kOwnAttentionOfSmallHeads = 0.75;

struct AttentionTime {
  double forward = 0;
  double backward = 0;
};

// Seconds of one token through all layers on one tensor-parallel rank. The rate of a call is that
// of a causal square whose queries see as many keys.
AttentionTime attention_on_gpu(const TransformerConfig& c, const ParallelConfig& parallel,
                               const GpuRoof& gpu, bool has_documents) {
  // Forward: two products of half a square; backward: five.
  const double forward = 2 * attention_layers(c) *
                         static_cast<double>(c.num_attention_heads * c.kv_channels * c.seq_length) /
                         static_cast<double>(parallel.tensor_model_parallel_size);
  const bool is_small = c.kv_channels < 128;
  double rate = gpu.matmul_flops / measured_gpu().matmul_flops * (is_small ? kSmallHeads : 1);
  const bool by_position = attends_by_position(c, has_documents);
  if (by_position) rate *= is_small ? kOwnAttentionOfSmallHeads : kOwnAttention;
  AttentionTime time;
  for (const AttentionPart& part : attention_parts(c, parallel, by_position)) {
    const double of_part = rate * (part.has_square || by_position ? 1 : kOblongMask);
    const double flops = forward * part.work / of_part;
    time.forward += flops / interpolated(kAttentionForward, 2 * part.keys);
    time.backward += 2.5 * flops / interpolated(kAttentionBackward, 2 * part.keys);
  }
  return time;
}

// Memory traffic of a token and a layer besides products and attention, in bytes: forward and
// backward, in 16 bits. `h` is this rank's part of the residual stream, `f` of the MLP, `q` and `k`
// of the heads.
double elementwise_bytes(const TransformerConfig& c, double h, double f, double q, double k) {
  double bytes = 36 * h;  // two norms with residual, bias and dropout
  if (c.position_embedding_type == PositionEmbedding::kRope) bytes += 8 * (q + k);
  if (c.fp8.is_on()) return bytes;  // the passes that quantise do the rest
  const bool is_tanh = c.activation == Activation::kGeluTanh;
  const bool derives_in_product = is_tanh && c.hidden_size >= kernels::kMinGeluGradientTerms;
  if (c.is_gated()) {
    bytes += 16 * f;
  } else if (!is_tanh) {
    bytes += 10 * f;
  } else if (!derives_in_product) {
    bytes += 6 * f;  // its derivative; the rate of products covers the forward pass
  }
  // The gradients of biases; the kernel of the activation's derivative sums that of fc1.
  if (c.add_bias_linear) bytes += 2 * (q + 2 * k + 2 * h + (derives_in_product ? f : 0));
  return bytes;
}

// The same of the passes that quantise: the inputs and the output gradients of linear layers are
// read in 16 bits and written twice in one byte. Those of fc2 and fc1 include the activation and
// its derivative. With tensorwise scales each source is read twice.
double quantisation_bytes(const TransformerConfig& c, double h, double f, double q, double k) {
  const double wide = f * (c.is_gated() ? 2 : 1);
  const double read = 2 * (2 * h + q + wide) + 2 * ((q + 2 * k) + 2 * h + wide + f);
  const double written = 2 * (2 * h + q + f) + 2 * ((q + 2 * k) + 2 * h + wide);
  return read * (c.fp8.recipe == Fp8Recipe::kTensorwise ? 2 : 1) + written;
}

// The part of the products of layers that is in FP8.
double part_in_fp8(const TransformerConfig& c) {
  const Fp8Config& fp8 = c.fp8;
  if (!fp8.is_on()) return 0;
  double layers = 1;
  if (fp8.first_last_layers_bf16) {
    layers -= static_cast<double>(fp8.num_layers_at_start_in_bf16 + fp8.num_layers_at_end_in_bf16) /
              static_cast<double>(c.num_layers);
  }
  // Gradients of experts' matrices stay in 16 bits.
  const double mlp = mlp_products(c);
  const double of_experts = c.has_experts() ? mlp / (mlp + attention_products(c)) : 0;
  return layers * (1 - (fp8.wgrad ? of_experts : 1) / 3);
}

// Seconds of one token through all layers on one tensor-parallel rank.
StepEstimate token_on_gpu(const TransformerConfig& c, const ParallelConfig& parallel,
                          const GpuRoof& gpu, bool has_documents) {
  const double products = gpu.matmul_flops / measured_gpu().matmul_flops;
  const double copies = gpu.memory_bytes / measured_gpu().memory_bytes;
  const auto ranks = static_cast<double>(parallel.tensor_model_parallel_size);
  const auto h = static_cast<double>(c.hidden_size);
  const auto v = static_cast<double>(c.padded_vocab_size);
  const auto layers = static_cast<double>(c.num_layers + c.mtp_num_layers);
  const auto q = static_cast<double>(c.num_attention_heads * c.kv_channels);
  const auto k = static_cast<double>(c.num_query_groups * c.kv_channels);
  const double mlp = mlp_products(c);
  const auto heads = static_cast<double>(1 + c.mtp_num_layers);
  const double weights = layers * (attention_products(c) + mlp);

  StepEstimate token;
  const double fp8 = part_in_fp8(c);
  token.linear = 6 * weights / ranks / products * ((1 - fp8) / kMatmulFlops + fp8 / kFp8Flops);
  token.head = 6 * h * v * heads / ranks / (products * kMatmulFlops);
  const AttentionTime attention = attention_on_gpu(c, parallel, gpu, has_documents);
  token.attention = attention.forward + attention.backward;
  const double f = mlp / h / (c.is_gated() ? 3 : 2) / ranks;
  double bytes =
      elementwise_bytes(c, parallel.sequence_parallel ? h / ranks : h, f, q / ranks, k / ranks);
  bytes += context_copy_bytes(parallel, q / ranks, k / ranks);
  if (fp8 > 0) bytes += quantisation_bytes(c, h, f, q / ranks, k / ranks);
  token.elementwise = (layers * bytes + 6 * v / ranks) / (copies * kCopyBytes * kStreamEfficiency);
  const RecomputedWork again = recomputed_work(c);
  const double again_bytes =
      2 * (again.normed / (parallel.sequence_parallel ? ranks : 1) + again.activated / ranks);
  token.recompute = layers * (2 * again.products / ranks / products *
                                  ((1 - fp8) / kMatmulFlops + fp8 / kFp8Flops) +
                              again_bytes / (copies * kCopyBytes * kStreamEfficiency));
  return token;
}

// Seconds of the transposes of all FP8 weights in one backward pass, without a cache of them.
double transposes_on_gpu(const TransformerConfig& c, const ParallelConfig& parallel,
                         const GpuRoof& gpu) {
  if (c.fp8.keep_transpose_cache || !c.fp8.is_on()) return 0;
  const double weights = static_cast<double>(c.num_layers + c.mtp_num_layers) *
                         (attention_products(c) + mlp_products(c)) * part_in_fp8(c) /
                         static_cast<double>(parallel.tensor_model_parallel_size);
  const double copies = gpu.memory_bytes / measured_gpu().memory_bytes;
  return 2 * weights / (copies * kCopyBytes * kStreamEfficiency);
}

// The same if only multiplications count: 6 FLOPs a weight, attention with half the square.
StepEstimate token_at_rate(const TransformerConfig& c, double flops_per_second) {
  const auto h = static_cast<double>(c.hidden_size);
  const auto layers = static_cast<double>(c.num_layers + c.mtp_num_layers);
  const auto q = static_cast<double>(c.num_attention_heads * c.kv_channels);
  const double mlp = mlp_products(c);
  StepEstimate token;
  token.linear = 6 * layers * (attention_products(c) + mlp) / flops_per_second;
  const auto heads = static_cast<double>(1 + c.mtp_num_layers);
  token.head = 6 * h * static_cast<double>(c.padded_vocab_size) * heads / flops_per_second;
  token.attention =
      6 * static_cast<double>(c.seq_length) * attention_layers(c) * q / flops_per_second;
  token.recompute = 2 * layers * recomputed_work(c).products / flops_per_second;
  return token;
}

// Seconds for which attention of `seconds` waits for what travels beside it.
double waiting_beside(const std::vector<SentBeside>& sent, double bytes_per_second,
                      const AttentionTime& part, double seconds) {
  const double all = part.forward + part.backward;
  double waiting = 0;
  for (const SentBeside& beside : sent) {
    const double work =
        seconds * (beside.forward * part.forward + beside.backward * part.backward) / all;
    waiting += std::max(0.0, beside.bytes / bytes_per_second - work);
  }
  return waiting;
}

// Seconds of an update. The host works beside the traffic to it and back.
double update_on_gpu(const UpdateWork& update, const GpuRoof& gpu) {
  const double products = gpu.matmul_flops / measured_gpu().matmul_flops;
  const double copies = gpu.memory_bytes / measured_gpu().memory_bytes;
  return update.device_bytes / (copies * kCopyBytes * kUpdateEfficiency) +
         (update.bf16_flops / kMatmulFlops + update.fp32_flops / kFp32Flops) / products +
         std::max(update.host_bytes / kHostBytes, update.bus_bytes / kBusBytes);
}

// The fraction of layers that are among the first `num_layers` of their chunk.
double part_of_first_layers(const TransformerConfig& c, const ParallelConfig& parallel,
                            int64_t num_layers) {
  const int64_t chunks =
      parallel.pipeline_model_parallel_size * num_model_chunks(parallel, c.num_layers);
  return std::min(1.0,
                  static_cast<double>(num_layers * chunks) / static_cast<double>(c.num_layers));
}

// The fraction of layers whose forward pass runs twice.
double recomputed_part(const TransformerConfig& c, const ParallelConfig& parallel) {
  if (c.recompute_granularity != RecomputeGranularity::kFull) return 0;
  if (c.recompute_method == RecomputeMethod::kUniform) return 1;
  return part_of_first_layers(c, parallel, c.recompute_num_layers);
}

// Seconds for which a part of the layers waits for copies of so many bytes beside them, to the host
// and back.
double waiting_both_ways(double bytes, double part, const StepEstimate& step) {
  const double copies = bytes / kBusBytes;
  const double forward = part * (step.linear + step.attention + step.elementwise) / 3;
  const double backward = 2 * forward + part * step.recompute;
  return std::max(0.0, copies - forward) + std::max(0.0, copies - backward);
}

// Seconds for which layers wait for copies of their inputs to the host (checkpoint_in_cpu), and for
// those back: copies go beside the layers. `tokens` is their number times the fraction of layers.
double waiting_copies(const TransformerConfig& c, const ParallelConfig& parallel, double tokens,
                      const StepEstimate& step) {
  if (!c.stores_inputs_on_host()) return 0;
  const auto layers = static_cast<double>(c.num_layers + c.mtp_num_layers);
  const auto group = static_cast<double>(c.recompute_num_layers);
  const double inputs =
      c.recompute_method == RecomputeMethod::kUniform ? layers / group : std::min(layers, group);
  const int64_t element = c.fp32_residual_connection ? 4 : size_of(c.params_dtype);
  const double ranks =
      parallel.sequence_parallel ? static_cast<double>(parallel.tensor_model_parallel_size) : 1;
  const double bytes = static_cast<double>(c.hidden_size * element) / ranks;
  return waiting_both_ways(tokens * inputs * bytes, 1, step);
}

// The same for the activations of layers (cpu_offloading_num_layers), whose copies go beside all
// layers of a chunk but two, or those that are copied: inputs and outputs of norms, queries, keys,
// values, what attention computes, inputs and results of activations.
double waiting_activations(const TransformerConfig& c, const ParallelConfig& parallel,
                           double tokens, const StepEstimate& step) {
  if (c.cpu_offloading_num_layers == 0) return 0;
  const auto h = static_cast<double>(c.hidden_size);
  const auto heads = static_cast<double>(c.num_attention_heads + c.num_query_groups);
  const auto ranks = static_cast<double>(parallel.tensor_model_parallel_size);
  const double part = part_of_first_layers(c, parallel, c.cpu_offloading_num_layers);
  const double beside = 1 - part_of_first_layers(c, parallel, 2);
  const double elements =
      4 * h / (parallel.sequence_parallel ? ranks : 1) +
      (2 * heads * static_cast<double>(c.kv_channels) + mlp_products(c) / h) / ranks;
  const double bytes = elements * static_cast<double>(size_of(c.params_dtype) * c.num_layers);
  return waiting_both_ways(tokens * part * bytes, std::max(part, beside), step);
}

// A third of a layer's products makes the gradients of weights. Repeated forward passes belong to
// the backward pass.
PassTimes pass_times(const StepEstimate& step) {
  const double forward = (step.linear + step.attention + step.elementwise) / 3;
  const double weight = step.linear / 3;
  return {forward, 2 * forward + step.recompute - weight, weight};
}

struct StageEstimate {
  double layers = 0;  // fraction of the model's layers
  bool has_head = false;
};

// The part of a layer's time that attention and its norm take, given the model's times in `step`.
double part_of_attention(const TransformerConfig& config, const StepEstimate& step) {
  const double products = attention_products(config);
  const double linear = step.linear * products / (products + mlp_products(config));
  return (linear + step.attention + step.elementwise / 2) /
         (step.linear + step.attention + step.elementwise);
}

// The layers and the head of the slowest pipeline stage, given the whole model's times in `step`.
StageEstimate slowest_stage(const TransformerConfig& config, const ParallelConfig& parallel,
                            const StepEstimate& step) {
  StageEstimate slowest;
  double longest = -1;
  const double attention = part_of_attention(config, step);
  for (int stage = 0; stage < parallel.pipeline_model_parallel_size; ++stage) {
    StageEstimate work;
    for (const ModelChunk& chunk : model_chunks(parallel, config.num_layers, stage)) {
      const double layers = static_cast<double>(chunk.num_layers) -
                            (chunk.begins_with_mlp ? attention : 0) -
                            (chunk.ends_with_attention ? 1 - attention : 0);
      work.layers += layers / static_cast<double>(config.num_layers);
      work.has_head = work.has_head || chunk.has_head;
    }
    const double seconds = work.layers * (step.linear + step.attention + step.elementwise) +
                           (work.has_head ? step.head : 0);
    if (seconds <= longest) continue;
    longest = seconds;
    slowest = work;
  }
  return slowest;
}

}  // namespace

StepEstimate estimated_step(const TransformerConfig& config, const ParallelConfig& parallel,
                            int64_t micro_batch_size, int64_t num_microbatches,
                            const UpdateWork& update, DeviceType device, double flops_per_second,
                            const SentTraffic& sent, const GpuRoof& gpu, bool has_documents) {
  const bool is_cpu = device == DeviceType::kCpu;
  StepEstimate step = is_cpu ? token_at_rate(config, flops_per_second)
                             : token_on_gpu(config, parallel, gpu, has_documents);
  const double tokens = static_cast<double>(micro_batch_size * config.seq_length) /
                        static_cast<double>(parallel.context_parallel_size);
  if (config.is_encoder_decoder()) {
    TransformerConfig encoder = config;
    encoder.decoder_num_layers = 0;
    const double factor = encoder_decoder_flops(config, 1) / encoder_decoder_flops(encoder, 1);
    for (double* part : {&step.linear, &step.attention, &step.elementwise, &step.recompute}) {
      *part *= factor;
    }
    step.head *=
        static_cast<double>(config.decoder_seq_length) / static_cast<double>(config.seq_length);
  }
  if (config.retro.reads_neighbors()) {
    const double all = causal_flops(config, 1);
    const double factor = all / (all - neighbor_flops(config, 1));
    for (double* part : {&step.linear, &step.attention, &step.elementwise, &step.recompute}) {
      *part *= factor;
    }
  }
  const StageEstimate work = slowest_stage(config, parallel, step);
  const double all = tokens * static_cast<double>(num_microbatches);
  step.linear *= all * work.layers;
  step.head *= work.has_head ? all : 0;
  step.attention *= all * work.layers;
  step.elementwise *= all * work.layers;
  step.recompute = step.recompute * all * work.layers +
                   recomputed_part(config, parallel) * (step.linear + step.attention) / 3;
  if (!is_cpu) {
    step.host_copies = waiting_copies(config, parallel, work.layers * all, step) +
                       waiting_activations(config, parallel, work.layers * all, step);
    step.recompute += transposes_on_gpu(config, parallel, gpu) * work.layers *
                      static_cast<double>(num_microbatches);
  }
  const double busy = step.total();
  const double waiting = bubble_fraction(
      pipeline_shape(parallel, 0, num_model_chunks(parallel, config.num_layers), num_microbatches),
      pass_times(step));
  step.bubble = busy * waiting / (1 - waiting);
  if (!is_cpu) {
    const double links = gpu.link_bytes / measured_gpu().link_bytes;
    step.communication =
        static_cast<double>(sent.exposed_bytes) / (links * kLinkBytes) +
        static_cast<double>(sent.exposed_transfers) * kTransferSeconds +
        static_cast<double>(sent.hidden_transfers) * kHiddenTransferSeconds +
        waiting_beside(sent.beside_attention, links * kLinkBytes,
                       attention_on_gpu(config, parallel, gpu, has_documents), step.attention);
  }
  step.optimizer = is_cpu ? (update.bf16_flops + update.fp32_flops) / flops_per_second
                          : update_on_gpu(update, gpu);
  return step;
}

}  // namespace megatron
