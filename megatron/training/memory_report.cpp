#include "megatron/training/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace megatron {
namespace {

constexpr double kMegabyte = 1024.0 * 1024.0;

}  // namespace

MemoryLayout memory_layout_of(const ParallelConfig& config, int64_t micro_batch_size,
                              int64_t num_microbatches) {
  return {.micro_batch_size = micro_batch_size,
          .num_microbatches = num_microbatches,
          .tp = config.tensor_model_parallel_size,
          .pp = config.pipeline_model_parallel_size,
          .vp = config.virtual_pipeline_model_parallel_size,
          .dp = config.data_parallel_size,
          .use_distributed_optimizer = config.use_distributed_optimizer};
}

TheoreticalMemory theoretical_memory(const TransformerConfig& config, const MemoryLayout& layout) {
  const auto h = static_cast<double>(config.hidden_size);
  const auto s = static_cast<double>(config.seq_length);
  const auto n = static_cast<double>(config.num_attention_heads);
  const auto g = static_cast<double>(config.num_query_groups);
  const auto v = static_cast<double>(config.padded_vocab_size);
  const auto layers = static_cast<double>(config.num_layers);
  const auto b = static_cast<double>(layout.micro_batch_size);
  const auto tp = static_cast<double>(layout.tp);
  const auto pp = static_cast<double>(layout.pp);
  const auto vp = static_cast<double>(layout.vp);
  const auto dp = static_cast<double>(layout.dp);
  const auto microbatches = static_cast<double>(layout.num_microbatches);
  const bool is_untied = config.untie_embeddings_and_output_weights;

  TheoreticalMemory m;
  m.layer_parameters =
      10.0 * layers * h * h * (1.0 + g / (5.0 * n) + 2.0 / (5.0 * h) + 1.0 / (5.0 * layers * h));
  const double embedding = h * v;
  m.total_parameters = m.layer_parameters + (is_untied ? 2.0 : 1.0) * embedding;
  m.most_loaded_parameters = (m.layer_parameters / pp + embedding) / tp;
  if (is_untied && layout.pp == 1) m.most_loaded_parameters += embedding / tp;
  m.other_parameters = m.layer_parameters / (pp * tp);
  m.bytes_per_parameter = layout.use_distributed_optimizer ? 6.0 + 12.0 / dp : 18.0;
  m.weight_and_optimizer_bytes = m.most_loaded_parameters * m.bytes_per_parameter;

  const double sbh = s * b * h;
  m.layer_activation_bytes = 34.0 * sbh / tp;
  // The layers of one stage for pp microbatches, the token ids, and the embedding's dropout mask.
  double activations = 34.0 * sbh * layers + 8.0 * s * b * pp + sbh * pp;
  if (layout.vp > 1) {
    m.interleaving_penalty = 1.0 + (pp - 1.0) / (pp * vp);
    m.in_flight_microbatches = static_cast<int64_t>(std::ceil(m.interleaving_penalty * pp));
    activations *= m.interleaving_penalty;
  } else if (layout.pp > 1) {
    m.in_flight_microbatches = std::min(layout.num_microbatches, layout.pp);
    activations *= std::min(1.0, microbatches / pp);
  }
  if (layout.pp == 1) activations += 4.0 * sbh * (1.0 + v / h);  // the output layer and its logits
  m.activation_bytes = activations / tp;
  return m;
}

std::vector<std::string> report_lines(const TheoreticalMemory& m, const MemoryLayout& layout) {
  std::vector<std::string> lines = {
      fmt::format("Number of parameters in billions: {:.2f}", m.total_parameters / 1e9),
      fmt::format("Number of parameters in most loaded shard in billions: {:.4f}",
                  m.most_loaded_parameters / 1e9)};
  if (layout.pp > 1) {
    lines.push_back(fmt::format("Number of parameters in other shards in billions: {:.4f}",
                                m.other_parameters / 1e9));
  }
  lines.push_back(fmt::format("Activation memory footprint per transformer layer: {:.1f} MB",
                              m.layer_activation_bytes / kMegabyte));
  if (layout.vp > 1) {
    lines.push_back(
        fmt::format("Memory penalty from interleaved schedule: {:.2f}", m.interleaving_penalty));
  }
  lines.push_back(fmt::format("Number of in-flight microbatches: {}", m.in_flight_microbatches));
  lines.push_back(fmt::format(
      "Theoretical memory footprints: weight and optimizer={:.2f} MB, activation={:.2f} MB, "
      "total={:.2f} MB",
      m.weight_and_optimizer_bytes / kMegabyte, m.activation_bytes / kMegabyte,
      m.total_bytes() / kMegabyte));
  return lines;
}

}  // namespace megatron
