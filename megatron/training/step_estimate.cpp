#include "megatron/training/step_estimate.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "megatron/parallel/pipeline/model_chunk.h"

namespace megatron {
namespace {

constexpr double kMatmulFlops = 790e12;     // bf16, 8192 cubed, random numbers
constexpr double kHeadEfficiency = 0.93;    // of the wide product with the vocabulary
constexpr double kCopyBytes = 4.3e12;       // read and written
constexpr double kStreamEfficiency = 0.85;  // of fused elementwise kernels
constexpr double kAdamEfficiency = 0.9;
constexpr double kLinkBytes = 342e9;  // of an NCCL all-reduce between H200 of one host
constexpr double kAdamBytes = 34;     // per parameter: gradient and state read, state written

struct Point {
  double x;
  double y;
};

// Straight lines between the points in log x, constant outside.
double interpolated(std::span<const Point> points, double x) {
  if (x <= points.front().x) return points.front().y;
  for (size_t i = 1; i < points.size(); ++i) {
    if (x > points[i].x) continue;
    const double part = std::log(x / points[i - 1].x) / std::log(points[i].x / points[i - 1].x);
    return points[i - 1].y + part * (points[i].y - points[i - 1].y);
  }
  return points.back().y;
}

// Of kMatmulFlops, by hidden_size.
constexpr Point kLinearEfficiency[] = {
    {768, 0.66}, {1024, 0.72}, {1600, 0.78}, {2048, 0.82}, {4096, 0.91}};
// FLOP/s of cuDNN's causal attention with heads of 128, by length.
constexpr Point kAttentionForward[] = {
    {1024, 370e12}, {2048, 484e12}, {4096, 591e12}, {8192, 644e12}, {16384, 673e12}};
constexpr Point kAttentionBackward[] = {
    {1024, 280e12}, {2048, 370e12}, {4096, 474e12}, {8192, 541e12}, {16384, 579e12}};
constexpr double kSmallHeads = 0.65;  // rate of heads of 64 against those of 128

// Seconds of one token on one tensor-parallel rank with all layers.
StepEstimate token_on_h200(const TransformerConfig& c, int64_t tp) {
  const auto ranks = static_cast<double>(tp);
  const auto h = static_cast<double>(c.hidden_size);
  const auto s = static_cast<double>(c.seq_length);
  const auto v = static_cast<double>(c.padded_vocab_size);
  const auto layers = static_cast<double>(c.num_layers);
  const auto q = static_cast<double>(c.num_attention_heads * c.kv_channels);
  const auto k = static_cast<double>(c.num_query_groups * c.kv_channels);
  const double mlp = h * static_cast<double>(c.ffn_hidden_size) * (c.is_gated() ? 3 : 2);
  const double weights = layers * (h * (q + 2 * k) + q * h + mlp);

  StepEstimate token;
  token.linear = 6 * weights / ranks / (kMatmulFlops * interpolated(kLinearEfficiency, h));
  token.head = 6 * h * v / ranks / (kMatmulFlops * kHeadEfficiency);
  // Two products of half a square forward, five backward.
  const double forward = 2 * layers * q * s / ranks;
  const double rate = c.kv_channels >= 128 ? 1 : kSmallHeads;
  token.attention = forward / (rate * interpolated(kAttentionForward, s)) +
                    2.5 * forward / (rate * interpolated(kAttentionBackward, s));
  token.elementwise = (36 * h * layers + 6 * v / ranks) / (kCopyBytes * kStreamEfficiency);
  return token;
}

// The same where only multiplications count: 6 FLOPs a weight, attention with half the square.
StepEstimate token_at_rate(const TransformerConfig& c, double flops_per_second) {
  const auto h = static_cast<double>(c.hidden_size);
  const auto layers = static_cast<double>(c.num_layers);
  const auto q = static_cast<double>(c.num_attention_heads * c.kv_channels);
  const auto k = static_cast<double>(c.num_query_groups * c.kv_channels);
  const double mlp = h * static_cast<double>(c.ffn_hidden_size) * (c.is_gated() ? 3 : 2);
  StepEstimate token;
  token.linear = 6 * layers * (h * (q + 2 * k) + q * h + mlp) / flops_per_second;
  token.head = 6 * h * static_cast<double>(c.padded_vocab_size) / flops_per_second;
  token.attention = 6 * static_cast<double>(c.seq_length) * layers * q / flops_per_second;
  return token;
}

// The part of the layers whose forward pass runs twice.
double recomputed_part(const TransformerConfig& c) {
  if (c.recompute_granularity != RecomputeGranularity::kFull) return 0;
  if (c.recompute_method == RecomputeMethod::kUniform) return 1;
  return std::min(1.0,
                  static_cast<double>(c.recompute_num_layers) / static_cast<double>(c.num_layers));
}

struct StageWork {
  double layers = 0;  // part of the model's
  bool has_head = false;
};

// Of the pipeline stage that takes longest, when all layers and the head take what `step` says.
StageWork slowest_stage(const TransformerConfig& config, const ParallelConfig& parallel,
                        const StepEstimate& step) {
  StageWork slowest;
  double longest = -1;
  for (int stage = 0; stage < parallel.pipeline_model_parallel_size; ++stage) {
    StageWork work;
    for (const ModelChunk& chunk : model_chunks(parallel, config.num_layers, stage)) {
      work.layers += static_cast<double>(chunk.num_layers) / static_cast<double>(config.num_layers);
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
                            int64_t num_parameters, DeviceType device, double flops_per_second,
                            int64_t exposed_bytes) {
  const bool is_cpu = device == DeviceType::kCpu;
  const int64_t tp = parallel.tensor_model_parallel_size;
  const auto stages = static_cast<double>(parallel.pipeline_model_parallel_size);
  const auto chunks =
      static_cast<double>(std::max<int64_t>(1, parallel.virtual_pipeline_model_parallel_size));
  StepEstimate step = is_cpu ? token_at_rate(config, flops_per_second) : token_on_h200(config, tp);
  const double tokens = static_cast<double>(micro_batch_size * config.seq_length) /
                        static_cast<double>(parallel.context_parallel_size);
  const StageWork work = slowest_stage(config, parallel, step);
  const double all = tokens * static_cast<double>(num_microbatches);
  step.linear *= all * work.layers;
  step.head *= work.has_head ? all : 0;
  step.attention *= all * work.layers;
  step.elementwise *= all * work.layers;
  step.recompute = recomputed_part(config) * (step.linear + step.attention) / 3;
  const double busy = step.total();
  step.bubble = busy * (stages - 1) / (chunks * static_cast<double>(num_microbatches));
  const auto parameters = static_cast<double>(num_parameters);
  step.communication = is_cpu ? 0 : static_cast<double>(exposed_bytes) / kLinkBytes;
  step.optimizer = is_cpu ? 0 : parameters * kAdamBytes / (kCopyBytes * kAdamEfficiency);
  return step;
}

}  // namespace megatron
