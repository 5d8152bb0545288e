#include "megatron/models/plan/planned_parameters.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "megatron/kernels/fp8_blocks.h"
#include "megatron/models/model_specs.h"
#include "megatron/models/plan/planned_stage.h"
#include "megatron/models/t5/t5_chunk.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {

std::vector<RepeatedSpec> parameters_of(const TransformerConfig& config, const ModelChunk& chunk) {
  if (config.retro.add_retriever) {  // whose layers differ
    std::vector<RepeatedSpec> all;
    for (ParameterSpec& spec : model_specs(config, chunk))
      all.push_back({std::move(spec), 1, false});
    return all;
  }
  const auto specs_of = [&](int64_t num_layers) {
    ModelChunk few = chunk;
    few.num_layers = num_layers;
    return model_specs(config, few);
  };
  std::set<std::string> outside_of_layers;
  for (const ParameterSpec& spec : specs_of(0)) outside_of_layers.insert(spec.name);
  std::vector<RepeatedSpec> all;
  for (ParameterSpec& spec : specs_of(std::min<int64_t>(chunk.num_layers, 1))) {
    if (spec.info.role == ParameterRole::kBuffer) continue;  // a few numbers
    const bool is_in_layer = !outside_of_layers.contains(spec.name);
    all.push_back({std::move(spec), is_in_layer ? chunk.num_layers : 1, is_in_layer});
  }
  return all;
}

int64_t num_shards(const PlannedTraining& t) {
  return t.parallel.use_distributed_optimizer
             ? t.parallel.data_parallel_size * t.parallel.context_parallel_size
             : 1;
}
bool divides_gradients(const PlannedTraining& t) {
  return t.parallel.zero_stage >= 2 && num_shards(t) > 1;
}
bool divides_parameters(const PlannedTraining& t) {
  return t.parallel.zero_stage >= 3 && num_shards(t) > 1;
}

Shape local_shape(const PlannedTraining& t, const ParameterSpec& spec) {
  return spec.info.sharding.on_rank(0, t.parallel.tensor_model_parallel_size).local(spec.shape);
}

namespace {

FlatItem flat_item(const PlannedTraining& t, const ParameterSpec& spec) {
  const int64_t numel = local_shape(t, spec).numel();
  const bool is_apart =
      divides_gradients(t) && spec.info.is_embedding_or_output && numel >= bucket_size(t.parallel);
  return {.numel = numel, .has_own_bucket = is_apart};
}

}  // namespace

std::vector<FlatItem> stage_parameters(const PlannedTraining& t, int64_t stage, bool are_trained) {
  std::vector<FlatItem> items;
  if (t.transformer.kind == ModelKind::kT5) {
    if (!are_trained) return {};  // a T5 has no adapters
    for (const ParameterSpec& spec :
         t5_specs(t.transformer, t5_chunk(t.parallel, t.transformer, stage))) {
      items.push_back(flat_item(t, spec));
    }
    return items;
  }
  for (const ModelChunk& chunk :
       model_chunks(t.parallel, t.transformer.num_layers, static_cast<int>(stage))) {
    std::vector<FlatItem> layer;
    std::vector<FlatItem> after;
    for (const auto& [spec, count, is_in_layer] : parameters_of(t.transformer, chunk)) {
      const bool is_trained = t.transformer.lora_rank == 0 || spec.info.is_adapter;
      if (is_trained != are_trained) continue;
      std::vector<FlatItem>& part = is_in_layer ? layer : layer.empty() ? items : after;
      part.push_back(flat_item(t, spec));
    }
    for (int64_t i = 0; i < chunk.num_layers; ++i) {
      items.insert(items.end(), layer.begin(), layer.end());
    }
    items.insert(items.end(), after.begin(), after.end());
  }
  return items;
}

std::vector<RepeatedSpec> trained_matrices(const PlannedTraining& t, int64_t stage) {
  std::vector<RepeatedSpec> all;
  const auto add = [&](const ParameterSpec& spec, int64_t count) {
    if (t.transformer.lora_rank > 0 && !spec.info.is_adapter) return;
    if (is_layer_matrix(spec.info)) all.push_back({spec, count, true});
  };
  if (t.transformer.kind == ModelKind::kT5) {
    for (const ParameterSpec& spec :
         t5_specs(t.transformer, t5_chunk(t.parallel, t.transformer, stage))) {
      add(spec, 1);
    }
    return all;
  }
  for (const ModelChunk& chunk :
       model_chunks(t.parallel, t.transformer.num_layers, static_cast<int>(stage))) {
    for (const auto& [spec, count, is_in_layer] : parameters_of(t.transformer, chunk)) {
      add(spec, count);
    }
  }
  return all;
}

int64_t num_matrix_elements(const PlannedTraining& t, int64_t stage) {
  int64_t sum = 0;
  for (const auto& [spec, count, is_in_layer] : trained_matrices(t, stage)) {
    sum += count * local_shape(t, spec).numel();
  }
  return sum;
}

FlatLayout stage_layout(const PlannedTraining& t, std::span<const FlatItem> items) {
  FlatLayoutOptions options;
  if (divides_gradients(t)) options.bucket_size = bucket_size(t.parallel);
  if (divides_gradients(t)) options.bucket_alignment = options.alignment * num_shards(t);
  return flat_layout(items, options);
}

int64_t largest_buckets(const FlatLayout& layout, size_t count, int64_t except) {
  std::vector<int64_t> sizes;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (static_cast<int64_t>(b) == except) continue;
    sizes.push_back(layout.buckets[b].end - layout.buckets[b].begin);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  if (sizes.size() > count) sizes.resize(count);
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

int64_t whole_gradients(const PlannedTraining& t, const FlatLayout& layout) {
  if (layout.buckets.empty()) return 0;
  if (t.transformer.untie_embeddings_and_output_weights) return largest_buckets(layout, 2);
  const int64_t embedding = layout.places.front().bucket;
  const FlatBucket& bucket = layout.buckets[static_cast<size_t>(embedding)];
  return bucket.end - bucket.begin + largest_buckets(layout, 2, embedding);
}

namespace {

// The weights of FP8 layers, with those of layers that FP8 leaves out.
std::vector<RepeatedSpec> fp8_weights(const PlannedTraining& t, int64_t stage) {
  std::vector<RepeatedSpec> all;
  for (const ModelChunk& chunk :
       model_chunks(t.parallel, t.transformer.num_layers, static_cast<int>(stage))) {
    for (RepeatedSpec& repeated : parameters_of(t.transformer, chunk)) {
      const ParameterInfo& info = repeated.spec.info;
      if (!repeated.is_in_layer || info.is_adapter || info.role != ParameterRole::kMatrix) continue;
      all.push_back(std::move(repeated));
    }
  }
  return all;
}

}  // namespace

int64_t num_gathered_in_fp8(const PlannedTraining& t, int64_t stage) {
  const Fp8Config& fp8 = t.transformer.fp8;
  if (!fp8.is_on() || !fp8.param_gather || num_shards(t) == 1 || t.transformer.lora_rank > 0)
    return 0;
  int64_t sum = 0;
  for (const auto& [spec, count, is_in_layer] : fp8_weights(t, stage)) {
    sum += count * local_shape(t, spec).numel();
  }
  return sum;
}

int64_t fp8_bytes(const PlannedTraining& t, int64_t stage) {
  if (!t.transformer.fp8.is_on()) return 0;
  const MicrobatchSizes sizes = microbatch_sizes(t);
  const auto numbers = [&](int64_t count) { return sizes.block(count, DType::kFloat32); };
  const Fp8Config& fp8 = t.transformer.fp8;
  const bool is_delayed = fp8.recipe == Fp8Recipe::kDelayed;
  const auto scales = [&](const Shape& weight) {
    if (fp8.recipe == Fp8Recipe::kBlockwise) {
      constexpr auto kSquares = kernels::Fp8Blocks::kSquare;
      return numbers(kernels::fp8_scales_shape(kSquares, weight).numel()) +
             numbers(kernels::fp8_scales_shape(kSquares, {weight[1], weight[0]}).numel());
    }
    if (!is_delayed) return numbers(1) + numbers(1);  // the inverse of its scale, and the scale
    return numbers(1) + numbers(3) + numbers(3 * fp8.amax_history_len);
  };
  int64_t sum = 0;
  int64_t layers = 0;
  for (const auto& [spec, count, is_in_layer] : fp8_weights(t, stage)) {
    const Shape shape = local_shape(t, spec);
    sum += count * (2 * sizes.block(shape.numel(), DType::kFloat8E4M3) + scales(shape));
    layers += count;
  }
  return sum + (is_delayed ? numbers(3 * layers) : 0);  // an iteration's amax
}

}  // namespace megatron
