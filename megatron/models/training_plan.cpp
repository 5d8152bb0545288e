#include "megatron/models/training_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "megatron/models/model_specs.h"
#include "megatron/models/t5/t5_chunk.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/parallel/pipeline/schedule.h"
#include "megatron/parallel/tensor/pieces.h"
#include "megatron/parallel/tensor/vocabulary_loss.h"

namespace megatron {
namespace {

int64_t num_stages(const PlannedTraining& t) { return t.parallel.pipeline_model_parallel_size; }

// Layers of a stack.
struct StackPart {
  std::string name;          // empty if the model has one stack
  TransformerConfig config;  // seq_length is the stack's
  int64_t num_layers = 0;
  bool has_cross_attention = false;
  bool has_end = false;  // and the final norm
};

// What a stage holds, over its chunks.
struct Stage {
  int64_t num_chunks = 1;
  int64_t num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;
  std::vector<StackPart> stacks = {};  // of one chunk, in the order of the forward pass
};

Stage t5_stage_of(const PlannedTraining& t, int64_t stage) {
  const TransformerConfig& c = t.transformer;
  const T5Chunk chunk = t5_chunk(t.parallel, c, stage);
  Stage all{.num_layers = chunk.encoder.num_layers + chunk.decoder.num_layers,
            .has_embedding = chunk.embeds_encoder || chunk.embeds_decoder,
            .has_head = chunk.has_head};
  if (chunk.has_encoder()) {
    all.stacks.push_back({"encoder ", c, chunk.encoder.num_layers, false, chunk.encoder.has_end});
  }
  if (chunk.has_decoder()) {
    TransformerConfig decoder = c;
    decoder.seq_length = c.decoder_seq_length;
    all.stacks.push_back(
        {"decoder ", decoder, chunk.decoder.num_layers, true, chunk.decoder.has_end});
  }
  return all;
}

Stage stage_of(const PlannedTraining& t, int64_t stage) {
  if (t.transformer.kind == ModelKind::kT5) return t5_stage_of(t, stage);
  const std::vector<ModelChunk> chunks =
      model_chunks(t.parallel, t.transformer.num_layers, static_cast<int>(stage));
  Stage all{.num_chunks = static_cast<int64_t>(chunks.size())};
  for (const ModelChunk& chunk : chunks) {
    all.num_layers += chunk.num_layers;
    all.has_embedding = all.has_embedding || chunk.has_embedding;
    all.has_head = all.has_head || chunk.has_head;
  }
  all.stacks = {{"", t.transformer, all.num_layers / all.num_chunks, false, all.has_head}};
  return all;
}

MicrobatchSizes sizes_of(const PlannedTraining& t) {
  return {.micro_batch_size = t.micro_batch_size,
          .tp = t.parallel.tensor_model_parallel_size,
          .cp = t.parallel.context_parallel_size,
          .sequence_parallel = t.parallel.sequence_parallel,
          .device = t.device,
          .is_deterministic = t.is_deterministic};
}

// A parameter, and how many like it there are.
struct RepeatedSpec {
  ParameterSpec spec;
  int64_t count = 1;
  bool is_in_layer = false;
};

// The parameters of a chunk. Layers are alike: one is described and stands for all, so that a plan
// of a million layers is quick.
std::vector<RepeatedSpec> parameters_of(const TransformerConfig& config, const ModelChunk& chunk) {
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

// The ranks that divide the optimizer's state, and more with ZeRO stages 2 and 3.
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

FlatItem flat_item(const PlannedTraining& t, const ParameterSpec& spec) {
  const int64_t tp = t.parallel.tensor_model_parallel_size;
  const int64_t numel = spec.info.sharding.on_rank(0, tp).local(spec.shape).numel();
  const bool is_apart =
      divides_gradients(t) && spec.info.is_embedding_or_output && numel >= bucket_size(t.parallel);
  return {.numel = numel, .has_own_bucket = is_apart};
}

// What a rank of a stage keeps in its flat buffer, in the order of registration: parameters that
// are trained, or the others.
std::vector<FlatItem> stage_parameters(const PlannedTraining& t, int64_t stage,
                                       bool are_trained = true) {
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

FlatLayout stage_layout(const PlannedTraining& t, std::span<const FlatItem> items) {
  FlatLayoutOptions options;
  if (divides_gradients(t)) options.bucket_size = bucket_size(t.parallel);
  if (divides_gradients(t)) options.bucket_alignment = options.alignment * num_shards(t);
  return flat_layout(items, options);
}

// Elements of the `count` largest buckets, but for bucket `except`.
int64_t largest_buckets(const FlatLayout& layout, size_t count, int64_t except = -1) {
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

// Of divided gradients, what exists whole (optim/divided_gradients.h): a bucket that is filled, one
// that is summed, and a tied embedding, whose gradients come first and last.
int64_t whole_gradients(const PlannedTraining& t, const FlatLayout& layout) {
  if (layout.buckets.empty()) return 0;
  if (t.transformer.untie_embeddings_and_output_weights) return largest_buckets(layout, 2);
  const int64_t embedding = layout.places.front().bucket;
  const FlatBucket& bucket = layout.buckets[static_cast<size_t>(embedding)];
  return bucket.end - bucket.begin + largest_buckets(layout, 2, embedding);
}

// What a stage's linear layers keep for FP8: their weights by rows and by columns, and scales.
// Layers that FP8 leaves out count, too.
int64_t fp8_bytes(const PlannedTraining& t, int64_t stage) {
  if (!t.transformer.fp8.is_on()) return 0;
  const MicrobatchSizes sizes = sizes_of(t);
  const auto numbers = [&](int64_t count) { return sizes.block(count, DType::kFloat32); };
  const Fp8Config& fp8 = t.transformer.fp8;
  int64_t scales = numbers(1);  // the inverse of a weight's
  if (fp8.recipe == Fp8Recipe::kDelayed) scales += numbers(3) + numbers(3 * fp8.amax_history_len);
  int64_t sum = 0;
  int64_t layers = 0;
  for (const ModelChunk& chunk :
       model_chunks(t.parallel, t.transformer.num_layers, static_cast<int>(stage))) {
    for (const auto& [spec, count, is_in_layer] : parameters_of(t.transformer, chunk)) {
      if (!is_in_layer || spec.info.role != ParameterRole::kMatrix) continue;
      const Shape local = spec.info.sharding.on_rank(0, sizes.tp).local(spec.shape);
      sum += count * (2 * sizes.block(local.numel(), DType::kFloat8E4M3) + scales);
      layers += count;
    }
  }
  return sum + numbers(3 * layers);  // an iteration's amax
}

// Layers that go backward in one piece.
struct Region {
  int64_t num_layers = 1;
  bool is_recomputed = false;
};

// Those of a model chunk, in the order of the forward pass; as TransformerBlock::forward does.
std::vector<Region> regions_of(const TransformerConfig& c, int64_t num_layers) {
  const bool is_full = c.recompute_granularity == RecomputeGranularity::kFull;
  std::vector<Region> regions;
  int64_t at = 0;
  while (at < num_layers) {
    Region region;
    if (is_full && c.recompute_method == RecomputeMethod::kUniform) {
      region = {std::min(c.recompute_num_layers, num_layers - at), true};
    } else {
      region.is_recomputed = is_full && at < c.recompute_num_layers;
    }
    regions.push_back(region);
    at += region.num_layers;
  }
  return regions;
}

// The layers of a stack in one chunk, and what they keep.
struct PlannedStack {
  PlannedStack(const StackPart& the_part, const MicrobatchSizes& of_run, int64_t encoder_length)
      : part(the_part),
        sizes(of_run),
        layer(),
        regions(regions_of(the_part.config, the_part.num_layers)) {
    if (part.has_cross_attention) sizes.encoder_length = encoder_length;
    layer = layer_memory(part.config, sizes);
  }

  StackPart part;
  MicrobatchSizes sizes;
  LayerMemory layer;
  std::vector<Region> regions;

  const TransformerConfig& config() const { return part.config; }
  int64_t tokens() const { return sizes.tokens(config()); }
  int64_t block(int64_t elements, DType dtype) const { return sizes.block(elements, dtype); }
  int64_t hidden() const {
    return block(sizes.residual_tokens(config()) * config().hidden_size, config().params_dtype);
  }
  // What cross-attention reads: [se, b, h].
  int64_t encoder_output() const {
    const int64_t tokens = sizes.encoder_length * sizes.micro_batch_size;
    return block(tokens / (sizes.sequence_parallel ? sizes.tp : 1) * config().hidden_size,
                 config().params_dtype);
  }
  // The final norm keeps its input and statistics; its output is what follows reads.
  int64_t final_norm() const { return layer.input.bytes + norm_statistics_bytes(config(), sizes); }
  // The relative position bias of all layers, or one of its gradients.
  int64_t relative_bias() const {
    if (config().position_embedding_type != PositionEmbedding::kRelative) return 0;
    const int64_t heads = config().num_attention_heads / sizes.tp;
    return block(heads * config().seq_length * config().seq_length, DType::kFloat32);
  }

  int64_t kept_by(const Region& region) const {
    return region.is_recomputed ? stored_input() : region.num_layers * layer.kept_bytes();
  }
  int64_t kept() const {
    int64_t sum = 0;
    for (const Region& region : regions) sum += kept_by(region);
    return sum;
  }
  bool has_distributed_inputs() const {
    return config().distribute_saved_activations && sizes.tp > 1 && !sizes.sequence_parallel;
  }
  // Of a recomputed region.
  int64_t stored_input() const {
    if (!has_distributed_inputs()) return layer.input.bytes;
    const DType dtype = config().fp32_residual_connection ? DType::kFloat32 : config().params_dtype;
    return block(tokens() * config().hidden_size / sizes.tp, dtype);
  }

  // From the gradient of the region's output on.
  std::vector<MemoryRow> backward_rows(const Region& region) const {
    std::vector<MemoryRow> rows = {{"gradient of the layer's output", layer.input.bytes}};
    if (region.is_recomputed) {
      if (has_distributed_inputs()) rows.push_back({"gathered input", layer.input.bytes});
      rows.push_back(
          {"recomputed activations", region.num_layers * layer.kept_bytes() - layer.input.bytes});
    }
    if (relative_bias() > 0) {
      rows.push_back({"gradients of the relative position bias", 2 * relative_bias()});
    }
    if (sizes.encoder_length > 0) {
      rows.push_back({"gradient of the encoder's output", encoder_output()});
    }
    const LayerMemory last = layer_memory(config(), sizes, region.is_recomputed);
    rows.push_back({"gradients inside the layer", peak_bytes(last.backward)});
    return rows;
  }
};

// The activations of a stage, at the moment at which the most of them exist.
class ActivationPlan {
 public:
  ActivationPlan(const PlannedTraining& t, int64_t stage)
      : t_(t), number_(stage), stage_(stage_of(t, stage)), sizes_(sizes_of(t)) {
    for (const StackPart& part : stage_.stacks) {
      stacks_.emplace_back(part, sizes_, t.transformer.seq_length);
    }
  }

  double microbatches_in_flight() const {
    return static_cast<double>(chunks_in_flight()) / static_cast<double>(stage_.num_chunks);
  }

  // Scratch memory of the kernel that needs most.
  int64_t workspace() const {
    int64_t most = 0;
    for (const PlannedStack& stack : stacks_) most = std::max(most, stack.layer.workspace);
    return most;
  }

  // Appends the rows of the peak and says when it is.
  std::string append(std::vector<PlannedRow>& rows) const {
    std::vector<MemoryRow> input = input_rows();
    if (num_stages(t_) > 1) {
      input.push_back({"messages between stages", num_messages() * message_bytes()});
    }
    if (stage_.has_head &&
        is_all_warmup()) {  // every microbatch gets its loss before any goes back
      input.push_back(
          {"losses of the other microbatches", (t_.num_microbatches - 1) * kept_by_head()});
    }
    int64_t held = total_bytes(input) + kept_by_layers();
    std::string peak_at;
    std::vector<MemoryRow> extra;
    std::vector<MemoryRow> input_then;  // when peak_at is
    int64_t peak = -1;
    const auto consider = [&](int64_t before, std::vector<MemoryRow> more, std::string when) {
      if (before + total_bytes(more) <= peak) return;
      peak = before + total_bytes(more);
      extra = std::move(more);
      peak_at = std::move(when);
      input_then = input;
    };
    if (stage_.has_head) consider(held, head_rows(), "loss");
    int64_t peak_layers = kept_by_layers();
    int64_t kept = kept_by_layers();
    for (auto stack = stacks_.rbegin(); stack != stacks_.rend(); ++stack) {
      // Layers of a stage's chunks count on.
      int64_t layer = stage_.num_chunks * stack->part.num_layers;
      for (MemoryRow& row : input) {
        if (&*stack == &stacks_.back() || row.what != final_norm_name(*stack)) continue;
        const int64_t freed = stack->final_norm() + stack->hidden();  // of this microbatch
        row.bytes -= freed;
        held -= freed;
      }
      for (auto region = stack->regions.rbegin(); region != stack->regions.rend(); ++region) {
        const int64_t before = peak;
        consider(held, stack->backward_rows(*region),
                 fmt::format("backward of {}layer {}", stack->part.name, layer));
        if (peak != before) peak_layers = kept;
        const int64_t freed = stack->kept_by(*region);
        held -= freed;
        kept -= freed;
        layer -= region->num_layers;
      }
    }
    const auto add = [&](const std::string& what, int64_t bytes) {
      if (bytes > 0) rows.push_back({MemoryCategory::kActivations, what, bytes});
    };
    for (const MemoryRow& row : input_then) add(row.what, row.bytes);
    for (const PlannedStack& stack : stacks_) add_layers(rows, stack, peak_layers);
    for (const MemoryRow& row : extra) add(row.what, row.bytes);
    return peak_at;
  }

 private:
  // Where it is not part of the head.
  static std::string final_norm_name(const PlannedStack& stack) {
    return stack.part.name + "final norm, input, statistics and output";
  }
  // An interleaved schedule with a microbatch for each stage (parallel/pipeline/schedule.h).
  bool is_all_warmup() const {
    return stage_.num_chunks > 1 && t_.num_microbatches == num_stages(t_);
  }
  // Forward passes whose backward pass has not begun, in model chunks (Narayanan et al. 2021,
  // fig. 4): one after another p - rank, interleaved the warm-up and one more.
  int64_t chunks_in_flight() const {
    const int64_t behind = num_stages(t_) - number_ - 1;
    const int64_t chunks = stage_.num_chunks;
    const int64_t all = chunks * t_.num_microbatches;
    if (chunks == 1) return std::min(behind + 1, all);
    if (is_all_warmup()) return all;
    return std::min(2 * behind + (chunks - 1) * num_stages(t_) + 1, all);
  }
  // Two being sent and one being received (parallel/pipeline/executor.cpp), if there are so many:
  // the last stage sends gradients alone.
  int64_t num_messages() const {
    const bool is_last = number_ == num_stages(t_) - 1;
    const int64_t a_microbatch = stage_.num_chunks * (is_last ? 1 : 2);
    return std::min<int64_t>(3, a_microbatch * t_.num_microbatches - 1);
  }
  // A decoder hands on the encoder's output, too.
  int64_t message_bytes() const {
    const PlannedStack& last = stacks_.back();
    return last.layer.input.bytes + (last.sizes.encoder_length > 0 ? last.encoder_output() : 0);
  }

  int64_t kept_by_layers() const {
    int64_t sum = 0;
    for (const PlannedStack& stack : stacks_) sum += stack.kept();
    return sum * chunks_in_flight();
  }

  // The kept tensors of a stack by name, of all layers together; `bytes` of those of this stack and
  // of the later ones are there.
  void add_layers(std::vector<PlannedRow>& rows, const PlannedStack& stack, int64_t& bytes) const {
    int64_t whole = 0;
    int64_t recomputed = 0;
    for (const Region& region : stack.regions) {
      whole += region.is_recomputed ? 0 : region.num_layers;
      recomputed += region.is_recomputed ? 1 : 0;
    }
    const auto add = [&](const MemoryRow& row, int64_t count) {
      const int64_t here = std::min(bytes, row.bytes * count * chunks_in_flight());
      bytes -= here;
      if (here <= 0) return;
      rows.push_back({MemoryCategory::kActivations,
                      fmt::format("{}layers: {}", stack.part.name, row.what), here});
    };
    add({"input of what is recomputed", stack.stored_input()}, recomputed);
    add(stack.layer.input, whole);
    for (const MemoryRow& row : stack.layer.kept) add(row, whole);
  }

  // What embedding a microbatch keeps, and tables.
  std::vector<MemoryRow> input_rows() const {
    const TransformerConfig& c = t_.transformer;
    std::vector<MemoryRow> rows;
    if (c.position_embedding_type == PositionEmbedding::kRope) {
      const int64_t positions = std::max(c.seq_length, c.max_position_embeddings);
      rows.push_back({"rotary table",
                      sizes_.block(positions * ((c.rotary_dim() + 1) / 2 * 2), DType::kFloat32)});
    }
    for (const PlannedStack& stack : stacks_) {
      const std::string& name = stack.part.name;
      const int64_t tokens = stack.tokens();
      rows.push_back({name + "relative position bias", stack.relative_bias()});
      if (stage_.has_embedding && t_.device == DeviceType::kCpu) {  // else they stay on the host
        const bool has_types = c.kind == ModelKind::kBert && c.tokentypes() > 0;
        rows.push_back({name + "token and position ids", 2 * stack.block(tokens, DType::kInt64)});
        if (has_types) rows.push_back({"token types", stack.block(tokens, DType::kInt64)});
      }
      if (stage_.has_embedding && c.embed_layernorm) {
        rows.push_back({"embedding norm, input and statistics",
                        stack.hidden() + norm_statistics_bytes(c, sizes_)});
      }
      if (&stack != &stacks_.back() || (stack.part.has_end && !stage_.has_head)) {
        rows.push_back(
            {final_norm_name(stack), chunks_in_flight() * (stack.final_norm() + stack.hidden())});
      }
      if (num_stages(t_) > 1 && stack.sizes.encoder_length > 0) {
        rows.push_back({"encoder's output", chunks_in_flight() * stack.encoder_output()});
      }
    }
    return rows;
  }

  // What the head keeps for the backward pass.
  int64_t kept_by_head() const {
    const PlannedStack& last = stacks_.back();
    const bool is_bert = last.config().kind == ModelKind::kBert;
    return last.final_norm() + last.hidden() +
           (is_bert ? 3 * last.hidden() + norm_statistics_bytes(last.config(), sizes_) : 0);
  }
  // The loss (vocabulary_loss()), when the gradient of a piece of the logits, written over them, is
  // multiplied back.
  std::vector<MemoryRow> head_rows() const {
    const PlannedStack& last = stacks_.back();
    const TransformerConfig& c = last.config();
    const int64_t tokens = last.tokens();
    const int64_t columns = c.padded_vocab_size / sizes_.tp;
    const int64_t b = sizes_.micro_batch_size;
    const int64_t rows = b * positions_of_piece(tokens / b, b, columns, c.params_dtype);
    const bool is_bert = c.kind == ModelKind::kBert;
    return {
        {"final norm, input and statistics", last.final_norm()},
        {"final norm, output", last.hidden()},
        {"LM head: dense layer, activation, norm",
         is_bert ? 3 * last.hidden() + norm_statistics_bytes(c, sizes_) : 0},
        {"a piece of the logits, then their gradient", last.block(rows * columns, c.params_dtype)},
        {"labels, loss mask, losses and their gradient",
         last.block(tokens, DType::kInt64) + 3 * last.block(tokens, DType::kFloat32)},
        {"gradient of the final norm's output", last.hidden() + 2 * gathered_bytes(c, sizes_)}};
  }

  const PlannedTraining& t_;
  int64_t number_;
  Stage stage_;
  MicrobatchSizes sizes_;
  std::vector<PlannedStack> stacks_;
};

}  // namespace

int64_t RankMemory::bytes(MemoryCategory category) const {
  int64_t sum = 0;
  for (const PlannedRow& row : rows) sum += row.category == category ? row.bytes : 0;
  return sum;
}

int64_t RankMemory::total_bytes() const {
  int64_t sum = 0;
  for (const PlannedRow& row : rows) sum += row.bytes;
  return sum;
}

RankMemory rank_memory(const PlannedTraining& t, int64_t stage) {
  const TransformerConfig& c = t.transformer;
  const Stage held = stage_of(t, stage);
  const std::vector<FlatItem> items = stage_parameters(t, stage);
  const std::vector<FlatItem> constants = stage_parameters(t, stage, false);
  const FlatLayout layout = stage_layout(t, items);
  const int64_t numel = layout.numel;
  const int64_t num_constants = flat_layout(constants, {}).numel;
  RankMemory memory;
  for (const FlatItem& item : items) memory.num_parameters += item.numel;
  for (const FlatItem& item : constants) memory.num_parameters += item.numel;
  memory.num_layers = held.num_layers;

  const MicrobatchSizes sizes = sizes_of(t);
  const bool is_16_bit = c.params_dtype != DType::kFloat32;
  const DType grad_dtype =
      t.parallel.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : c.params_dtype;
  const int64_t shards = num_shards(t);
  const auto add = [&memory](MemoryCategory category, std::string what, int64_t bytes) {
    if (bytes > 0) memory.rows.push_back({category, std::move(what), bytes});
  };
  const int64_t shard = (numel + shards - 1) / shards;
  const auto fp32_shard = [&] { return sizes.block(shard, DType::kFloat32); };
  add(MemoryCategory::kParameters, "parameters",
      sizes.block(divides_parameters(t) ? shard : numel, c.params_dtype));
  if (divides_parameters(t)) {  // in use, used before, and gathered ahead
    add(MemoryCategory::kParameters, "gathered parameters",
        sizes.block(largest_buckets(layout, 3), c.params_dtype));
  }
  add(MemoryCategory::kParameters, "parameters that are not trained",
      sizes.block(num_constants, c.params_dtype));
  add(MemoryCategory::kParameters, "weights and scales in FP8", fp8_bytes(t, stage));
  add(MemoryCategory::kGradients, "main gradients",
      sizes.block(divides_gradients(t) ? shard : numel, grad_dtype));
  if (divides_gradients(t)) {
    add(MemoryCategory::kGradients, "gradients that are not summed yet",
        sizes.block(whole_gradients(t, layout), grad_dtype));
  }
  // With offload, the host of a GPU has the state.
  const bool is_offloaded = t.optimizer.optimizer_cpu_offload;
  if (!is_offloaded || t.device == DeviceType::kCpu) {
    if (is_16_bit || is_offloaded) {
      add(MemoryCategory::kOptimizer, "fp32 main parameters", fp32_shard());
    }
    if (t.optimizer.optimizer == OptimizerKind::kAdam) {
      add(MemoryCategory::kOptimizer, "Adam's two moments", 2 * fp32_shard());
    } else {
      add(MemoryCategory::kOptimizer, "momentum", fp32_shard());
    }
  }

  const ActivationPlan activations(t, stage);
  memory.peak_at = activations.append(memory.rows);
  memory.microbatches_in_flight = activations.microbatches_in_flight();
  add(MemoryCategory::kWorkspace, "scratch of kernels", activations.workspace());
  return memory;
}

RankMemory largest_rank_memory(const PlannedTraining& t) {
  RankMemory largest = rank_memory(t, 0);
  for (int64_t stage = 1; stage < num_stages(t); ++stage) {
    RankMemory memory = rank_memory(t, stage);
    if (memory.total_bytes() > largest.total_bytes()) largest = std::move(memory);
  }
  return largest;
}

int64_t num_model_parameters(const TransformerConfig& config) {
  int64_t sum = 0;
  if (config.kind == ModelKind::kT5) {
    for (const ParameterSpec& spec : t5_specs(config)) sum += spec.shape.numel();
    return sum;
  }
  for (const auto& [spec, count, is_in_layer] :
       parameters_of(config, whole_model(config.num_layers))) {
    sum += count * spec.shape.numel();
  }
  return sum;
}

int64_t largest_micro_batch_size(PlannedTraining training, int64_t bytes, int64_t at_most) {
  for (int64_t size = at_most; size >= 1; --size) {
    training.micro_batch_size = size;
    if (largest_rank_memory(training).total_bytes() <= bytes) return size;
  }
  return 0;
}

double pipeline_bubble(const PlannedTraining& t) {
  return bubble_fraction({.stage = 0,
                          .stages = num_stages(t),
                          .chunks = num_model_chunks(t.parallel, t.transformer.num_layers),
                          .microbatches = t.num_microbatches});
}

namespace {

// What a ring of so many ranks sends of a reduce-scatter or an all-gather.
int64_t part_of_ring(int64_t bytes, int64_t ranks) { return bytes / ranks * (ranks - 1); }

// Of one microbatch, in collectives of the residual stream, an all-reduce being two. Two layers
// with a column- and a row-parallel product: forward an all-gather and a reduce-scatter each, or an
// all-reduce; backward the same, and sequence parallelism gathers the inputs once more for the
// gradients of weights.
//
// Cross-attention has another pair of products, and a third whose input is the encoder's output.
double collectives_of_layers(const PlannedTraining& t, const StackPart& stack, bool only_exposed) {
  const ParallelConfig& p = t.parallel;
  const MicrobatchSizes sizes = sizes_of(t);
  const Shape slice = {stack.config.seq_length / sizes.cp / sizes.tp, sizes.micro_batch_size,
                       stack.config.hidden_size};
  const Stream stream{Device{t.device, 0}};
  double forward = 4;
  double backward = p.sequence_parallel ? 6 : 4;
  if (only_exposed && p.sequence_parallel) {
    const bool by_pieces = p.tp_comm_overlap && is_worth_a_piece(slice, stream);
    forward = by_pieces ? 0 : 4;
    backward = by_pieces ? 0 : 2;
  } else if (only_exposed && p.async_tensor_model_parallel_allreduce) {
    backward = 0;
  }
  if (stack.has_cross_attention) {
    forward *= 1.5;
    backward *= 2;
  }
  double count = static_cast<double>(stack.num_layers) * (forward + backward);
  for (const Region& region : regions_of(stack.config, stack.num_layers)) {
    if (!region.is_recomputed) continue;
    const bool gathers_input = stack.config.distribute_saved_activations && !p.sequence_parallel;
    count += static_cast<double>(region.num_layers) * forward + (gathers_input ? 1 : 0);
  }
  return count;
}

int64_t num_recomputed_layers(const Stage& stage) {
  int64_t count = 0;
  for (const StackPart& stack : stage.stacks) {
    for (const Region& region : regions_of(stack.config, stack.num_layers)) {
      count += region.is_recomputed ? stage.num_chunks * region.num_layers : 0;
    }
  }
  return count;
}

// A bucket of gradients or parameters that holds `bytes` in all.
int64_t bucket_bytes(const PlannedTraining& t, int64_t bytes, int64_t num_parameters) {
  const int64_t size = std::min(num_parameters, bucket_size(t.parallel));
  return num_parameters == 0 ? 0 : bytes / num_parameters * size;
}

Traffic traffic_of(const PlannedTraining& t, int64_t stage, bool only_exposed) {
  const TransformerConfig& c = t.transformer;
  const ParallelConfig& p = t.parallel;
  const RankMemory memory = rank_memory(t, stage);
  const Stage held = stage_of(t, stage);
  Traffic sent;
  const int64_t dp = p.data_parallel_size * p.context_parallel_size;
  const auto data = [&](int64_t bytes, bool is_hidden) {
    if (only_exposed && is_hidden) bytes = bucket_bytes(t, bytes, memory.num_parameters);
    return part_of_ring(bytes, dp);
  };
  const MicrobatchSizes sizes = sizes_of(t);
  const int64_t numel = stage_layout(t, stage_parameters(t, stage)).numel;
  const int64_t gradients =
      sizes.block(numel, p.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : c.params_dtype);
  const int64_t parameters = sizes.block(numel, c.params_dtype);
  // ZeRO stages 2 and 3 sum the gradients of each microbatch, and stage 3 gathers the parameters
  // for each forward and each backward pass.
  const int64_t sums = divides_gradients(t) ? t.num_microbatches : 1;
  sent.data_parallel = sums * data(gradients, p.overlap_grad_reduce || divides_gradients(t));
  if (divides_parameters(t)) {
    sent.data_parallel += 2 * t.num_microbatches * data(parameters, true);
  } else {
    sent.data_parallel += p.use_distributed_optimizer ? data(parameters, p.overlap_param_gather)
                                                      : data(gradients, p.overlap_grad_reduce);
  }
  const auto hidden_of = [&](const StackPart& stack) {
    return sizes.tokens(stack.config) * c.hidden_size * size_of(c.params_dtype);
  };
  for (const StackPart& stack : held.stacks) {
    if (sizes.tp == 1) break;
    const double collectives = collectives_of_layers(t, stack, only_exposed) *
                               static_cast<double>(held.num_chunks * t.num_microbatches);
    sent.tensor_parallel += static_cast<int64_t>(
        collectives * static_cast<double>(part_of_ring(hidden_of(stack), sizes.tp)));
    sent.transfers += static_cast<int64_t>(collectives);
  }
  // Gathered forward and backward, and gradients reduce-scattered.
  const int64_t keys = sizes.tokens(c) * sizes.cp * 2 * c.num_query_groups * c.kv_channels /
                       sizes.tp * size_of(c.params_dtype);
  sent.context_parallel = (3 * held.num_layers + num_recomputed_layers(held)) *
                          part_of_ring(keys, sizes.cp) * t.num_microbatches;
  if (only_exposed && held.num_chunks > 1) return sent;
  const int64_t boundaries = (stage > 0 ? 1 : 0) + (stage < num_stages(t) - 1 ? 1 : 0);
  const StackPart& last = held.stacks.back();
  int64_t message = hidden_of(last);
  if (last.has_cross_attention) message += message / last.config.seq_length * c.seq_length;
  sent.pipeline_parallel = boundaries * held.num_chunks * t.num_microbatches *
                           (sizes.sequence_parallel ? message / sizes.tp : message);
  return sent;
}

}  // namespace

Traffic traffic(const PlannedTraining& training, int64_t stage) {
  return traffic_of(training, stage, false);
}

Traffic exposed_traffic(const PlannedTraining& training, int64_t stage) {
  return traffic_of(training, stage, true);
}

}  // namespace megatron
