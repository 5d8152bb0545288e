#include "megatron/interchange/megatron/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/torch_writer.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/optimizer.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/interchange/megatron/python_random.h"
#include "megatron/interchange/megatron/shard_parts.h"
#include "megatron/interchange/megatron/stages.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr double kCheckpointVersion = 3.0;
constexpr const char* kWords = "embedding.word_embeddings.weight";
constexpr const char* kOutput = "output_layer.weight";
constexpr std::string_view kModelPrefix = "language_model.";

// A tensor of a rank's file.
struct Parameter {
  std::string ours;  // whose elements
  std::string path;  // its key in the file
  Shape shape;       // of the shard
  ParameterInfo info;
};
using Chunk = std::vector<Parameter>;

// Writes the file of one rank.
class RankWriter {
 public:
  RankWriter(const fs::path& file, const CheckpointContents& contents, const MegatronLayout& layout,
             int64_t tensor, int64_t pipeline)
      : contents_(contents),
        layout_(layout),
        weights_(contents.sections.at(kWeightsSection)),
        tensor_(tensor),
        pipeline_(pipeline),
        writer_(file),
        pickle_(writer_.pickle()),
        kind_(kind_of(contents)),
        table_(parameter_table(kind_, is_gated(contents.args))),
        stages_(contents, layout) {
    weights_dtype_ = layout.params_dtype.value_or(weights_.at(kWords).dtype);
    for (int64_t chunk = 0; chunk < layout.virtual_pipeline_model_parallel_size; ++chunk) {
      chunks_.push_back(chunk_of(chunk));
    }
  }

  void write() {
    pickle_.begin_dict();
    key("args"), write_args();
    key("checkpoint_version"), pickle_.number(kCheckpointVersion);
    key("iteration"), pickle_.integer(contents_.iteration);
    key("num_floating_point_operations_so_far"),
        pickle_.number(scalar("progress", "floating_point_operations"));
    for (size_t i = 0; i < chunks_.size(); ++i) {
      key(chunks_.size() == 1 ? "model" : fmt::format("model{}", i));
      is_core(layout_.naming) ? write_core(chunks_[i]) : write_legacy(chunks_[i]);
    }
    if (has_optimizer()) {
      key("optimizer"), write_optimizer();
      const auto scheduler = contents_.scalars.find("opt_param_scheduler");
      if (scheduler != contents_.scalars.end()) {
        key("opt_param_scheduler"), pickle_.begin_dict();
        for (const auto& [name, value] : scheduler->second) key(name), pickle_.value(value);
        pickle_.end_dict();
      }
    }
    key("rng_state"), write_random_states();
    pickle_.end_dict();
    for (const auto& write_elements : elements_) write_elements();
    writer_.commit();
  }

  // The file of the distributed optimizer beside it: for each chunk and kind of state a flat
  // buffer, with the parameters one behind the other, last first (flat_layout.h).
  bool is_distributed() const { return has_optimizer() && layout_.use_distributed_optimizer; }
  void write_flat_state(const fs::path& file) const {
    TorchWriter writer(file);
    PickleWriter& pickle = writer.pickle();
    std::vector<FlatLayout> layouts;
    for (size_t chunk = 0; chunk < chunks_.size(); ++chunk)
      layouts.push_back(flat_layout_of(chunk));
    const char* main =
        contents_.sections.contains(kMainParamSection) ? kMainParamSection : kWeightsSection;
    const std::pair<const char*, const char*> kinds[] = {
        {"param", main}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}};
    pickle.begin_dict();
    pickle.text("per_bucket_numel");
    write_bucket_sizes(pickle, layouts, [](const FlatBucket& b) { return b.end - b.begin; });
    pickle.text("per_bucket_numel_unpadded");
    write_bucket_sizes(pickle, layouts,
                       [](const FlatBucket& b) { return b.unpadded_end - b.begin; });
    for (size_t chunk = 0; chunk < layouts.size(); ++chunk) {
      pickle.integer(static_cast<int64_t>(chunk)), pickle.begin_dict();
      pickle.dtype(grad_dtype()), pickle.begin_dict();
      for (const auto& [theirs, ours] : kinds) {
        pickle.text(theirs), pickle.begin_list();
        for (const FlatBucket& bucket : layouts[chunk].buckets) {
          writer.tensor(DType::kFloat32, {bucket.end - bucket.begin});
        }
        pickle.end_list();
      }
      pickle.end_dict(), pickle.end_dict();
    }
    pickle.end_dict();
    for (size_t chunk = 0; chunk < layouts.size(); ++chunk) {
      for (const auto& [theirs, ours] : kinds) {
        write_flat_buffer(writer, chunks_[chunk], layouts[chunk], ours);
      }
    }
    writer.commit();
  }

 private:
  FlatLayout flat_layout_of(size_t chunk) const {
    std::vector<FlatItem> items;
    for (const Parameter& parameter : chunks_[chunk]) items.push_back({parameter.shape.numel()});
    // Compat: core_r0.5.0 has buckets where reduction is overlapped, on the first stage.
    const bool has_buckets =
        chunk == 0 && pipeline_ == 0 && value_or(contents_.args, "overlap_grad_reduce", false);
    return flat_layout(items, {.alignment = 1,
                               .bucket_size = has_buckets ? kMegatronBucketSize : 0,
                               .bucket_alignment = layout_.data_parallel_size});
  }
  // [{dtype of gradients: [number for each bucket]} for each chunk]
  template <class Size>
  void write_bucket_sizes(PickleWriter& pickle, const std::vector<FlatLayout>& layouts,
                          const Size& size) const {
    pickle.begin_list();
    for (const FlatLayout& layout : layouts) {
      pickle.begin_dict();
      pickle.dtype(grad_dtype()), pickle.begin_list();
      for (const FlatBucket& bucket : layout.buckets) pickle.integer(size(bucket));
      pickle.end_list();
      pickle.end_dict();
    }
    pickle.end_list();
  }
  void write_flat_buffer(TorchWriter& writer, const Chunk& chunk, const FlatLayout& layout,
                         const char* section) const {
    const auto write_fp32 = [&](FileElements elements) {
      if (elements.view.dtype == DType::kFloat32)
        return writer.write_part_later(std::move(elements));
      const Tensor converted = cast(copy_of(elements.view), DType::kFloat32);
      writer.write_part_later({converted.view(), converted});
    };
    int64_t at = 0;
    for (size_t i = chunk.size(); i-- > 0;) {
      invariant(layout.places[i].begin == at, "parameters lie one behind the other");
      write_fp32(shard(contents_.sections.at(section).at(chunk[i].ours), chunk[i]));
      at = layout.places[i].end;
      const FlatBucket& bucket = layout.buckets[static_cast<size_t>(layout.places[i].bucket)];
      if (at < bucket.unpadded_end || bucket.end == at) continue;
      const Tensor padding = zeros({bucket.end - at}, DType::kFloat32, Stream{});
      writer.write_part_later({padding.view(), padding});
      at = bucket.end;
    }
  }

  bool has_optimizer() const {
    return layout_.with_optimizer && contents_.sections.contains("exp_avg");
  }
  double scalar(const char* owner, const char* name) const {
    const auto map = contents_.scalars.find(owner);
    if (map == contents_.scalars.end()) return 0.0;
    return value_or(map->second, name,
                    static_cast<double>(value_or<int64_t>(map->second, name, 0)));
  }
  void key(std::string_view name) { pickle_.text(name); }

  // The parameters of a chunk as Megatron-LM registers them.
  Chunk chunk_of(int64_t chunk) const {
    const MegatronStages::Place here = {pipeline_, chunk};
    std::vector<std::string> names;
    for (const auto& [name, tensor] : weights_) {
      if (stages_.holds(here, name)) names.push_back(name);
    }
    Chunk parameters;
    const auto add = [&](const std::string& ours, std::string path) {
      ParameterInfo info = table_.at(ours);
      info.sharding = info.sharding.on_rank(tensor_, layout_.tensor_model_parallel_size);
      parameters.push_back(
          {ours, std::move(path), info.sharding.local(weights_.at(ours).shape), info});
    };
    const bool is_tied = !weights_.contains(kOutput);
    if (is_tied && stages_.is_last(here) && !stages_.has_embeddings(here)) {
      names.emplace_back(kOutput);  // the tied copy
    }
    for (const std::string& name : registration_order(layout_.naming, std::move(names))) {
      if (is_tied && name == kOutput) {
        add(kWords, megatron_tied_name(layout_.naming));
        continue;
      }
      std::optional<int64_t> layer;
      const std::string pattern = without_layer(name, layer);
      const std::string path = megatron_name(kind_, layout_.naming, pattern);
      add(name, with_layer(path, layer ? stages_.local_layer(here, name, *layer) : 0));
    }
    return parameters;
  }

  // Announces the rank's shard of a tensor of a section as the next value.
  void tensor(const char* section, const Parameter& parameter, DType dtype) {
    writer_.tensor(dtype, parameter.shape);
    elements_.emplace_back(
        [this, &parameter, dtype, stored = &contents_.sections.at(section).at(parameter.ours)] {
          FileElements elements = shard(*stored, parameter);
          if (elements.view.dtype == dtype) return writer_.write_later(std::move(elements));
          const Tensor converted = cast(copy_of(elements.view), dtype);
          writer_.write_later(FileElements{converted.view(), converted});
        });
  }
  void constant(Tensor value) {
    writer_.tensor(value.dtype(), value.shape());
    elements_.emplace_back([this, value] { writer_.write_later({value.view(), value}); });
  }

  FileElements shard(const StoredTensor& stored, const Parameter& parameter) const {
    const std::vector<ShardPart> parts = shard_parts(parameter.info.sharding, stored.shape);
    if (parts.size() == 1) return elements_of(stored, parts[0].region);
    Tensor y(parameter.shape, stored.dtype, Stream{});
    for (const ShardPart& part : parts) {
      Tensor rows = y.slice(part.begin, part.region.shape[0]);
      copy_into(rows, read_region(stored, part.region));
    }
    return {std::as_const(y).view(), y};
  }

  // {"language_model": {"embedding": {"word_embeddings": {"weight"}, ...}, "encoder": {...}, ...},
  // heads, the tied copy}
  void write_legacy(const Chunk& chunk) {
    pickle_.begin_dict();
    key("language_model"), pickle_.begin_dict();
    write_group(chunk, std::string(kModelPrefix), "embedding",
                {"word_embeddings", "position_embeddings", "tokentype_embeddings"});
    for (const char* group : {"encoder", "decoder", "pooler", "output_layer"}) {
      write_group(chunk, std::string(kModelPrefix), group);
    }
    pickle_.end_dict();
    for (const char* group : {"lm_head", "binary_head", "word_embeddings_for_head"}) {
      write_group(chunk, "", group);
    }
    pickle_.end_dict();
  }
  // A dictionary of the parameters whose paths begin with prefix and group, if there are any:
  // divided once more, or flat.
  void write_group(const Chunk& chunk, const std::string& prefix, const std::string& group,
                   const std::vector<std::string>& inner = {}) {
    const std::string inside = fmt::format("{}{}.", prefix, group);
    if (std::ranges::none_of(chunk, [&](const Parameter& parameter) {
          return parameter.path.starts_with(inside);
        })) {
      return;
    }
    key(group);
    if (!inner.empty()) {
      pickle_.begin_dict();
      for (const std::string& name : inner) write_group(chunk, inside, name);
      return pickle_.end_dict();
    }
    pickle_.begin_ordered_dict();
    write_flat(chunk, inside);
    if (group == "encoder" || group == "decoder") {
      write_extra_states(chunk, "layers.{i}.", inside,
                         kind_ == ModelKind::kT5 && group == "decoder");
    }
    if (group == "output_layer") key("_extra_state"), pickle_.none();
    pickle_.end_ordered_dict();
  }
  void write_flat(const Chunk& chunk, std::string_view prefix) {
    for (const Parameter& parameter : chunk) {
      if (!parameter.path.starts_with(prefix)) continue;
      key(parameter.path.substr(prefix.size()));
      tensor(kWeightsSection, parameter, weights_dtype_);
    }
  }
  // Loading is strict: modules of Transformer Engine, or what stands for them, must find a state.
  // `prefix` begins their keys, `inside` the paths of the stack's parameters.
  void write_extra_states(const Chunk& chunk, std::string_view prefix, std::string_view inside,
                          bool has_cross_attention) {
    int64_t layers = 0;
    for (const Parameter& parameter : chunk) {
      if (!parameter.path.starts_with(inside)) continue;
      std::optional<int64_t> layer;
      without_layer(parameter.path, layer);
      if (layer) layers = std::max(layers, *layer + 1);
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (const std::string& module : extra_states(layout_.naming, has_cross_attention)) {
        key(fmt::format("{}{}._extra_state", with_layer(prefix, layer), module)), pickle_.none();
      }
    }
  }
  void write_core(const Chunk& chunk) {
    pickle_.begin_ordered_dict();
    write_flat(chunk, "");
    if (kind_ != ModelKind::kGpt)
      write_extra_states(chunk, "encoder.layers.{i}.", "encoder.", false);
    if (kind_ != ModelKind::kBert) {
      write_extra_states(chunk, "decoder.layers.{i}.", "decoder.", kind_ == ModelKind::kT5);
    }
    if (stages_.is_last({pipeline_, static_cast<int64_t>(&chunk - chunks_.data())})) {
      key("output_layer._extra_state"), pickle_.none();
      if (kind_ == ModelKind::kT5) write_second_head(chunk);
    }
    pickle_.end_ordered_dict();
  }

  // Megatron Core's T5 knows its head by a second name.
  void write_second_head(const Chunk& chunk) {
    for (const Parameter& parameter : chunk) {
      if (!parameter.path.starts_with("output_layer.")) continue;
      key("lm_head." + parameter.path), tensor(kWeightsSection, parameter, weights_dtype_);
    }
    key("lm_head.output_layer._extra_state"), pickle_.none();
  }

  // Parameters are numbered group by group: those with weight decay, then those without.
  std::array<std::vector<const Parameter*>, 2> groups() const {
    std::array<std::vector<const Parameter*>, 2> groups;
    for (const Chunk& chunk : chunks_) {
      for (const Parameter& parameter : chunk) {
        groups[is_decayed(parameter.info.role) ? 0 : 1].push_back(&parameter);
      }
    }
    return groups;
  }

  int64_t optimizer_step() const {
    const auto map = contents_.scalars.find("optimizer");
    if (map == contents_.scalars.end()) return contents_.iteration;
    const auto steps = value_or<std::vector<int64_t>>(map->second, "group_steps", {});
    return value_or(map->second, "step", steps.empty() ? contents_.iteration : steps[0]);
  }

  void write_optimizer() {
    const bool has_copies =
        weights_dtype_ != DType::kFloat32 && contents_.sections.contains(kMainParamSection);
    if (!has_copies && !is_distributed()) return write_adam();
    pickle_.begin_dict();
    key("optimizer"), write_adam();
    write_scaler();
    if (!is_distributed()) write_main_params();
    pickle_.end_dict();
  }

  void write_scaler() {
    const auto scaler = contents_.scalars.find("grad_scaler");
    if (scaler == contents_.scalars.end()) return;
    key("grad_scaler"), pickle_.begin_dict();
    key("scale"), constant(full({1}, static_cast<float>(scalar("grad_scaler", "scale")),
                                DType::kFloat32, Stream{}));
    for (const char* name : {"growth_tracker", "hysteresis_tracker"}) {
      key(name), pickle_.integer(value_or<int64_t>(scaler->second, name, 0));
    }
    pickle_.end_dict();
  }

  void write_main_params() {
    key("fp32_from_fp16_params"), pickle_.begin_list();
    for (const auto& group : groups()) {
      if (group.empty()) continue;
      pickle_.begin_list();
      for (const Parameter* parameter : group) {
        tensor(kMainParamSection, *parameter, DType::kFloat32);
      }
      pickle_.end_list();
    }
    pickle_.end_list();
  }

  void write_adam() {
    const int64_t step = optimizer_step();
    pickle_.begin_dict();
    if (!is_distributed()) key("state"), write_adam_state(step);
    key("param_groups"), pickle_.begin_list();
    int64_t id = 0;
    for (size_t g = 0; g < 2; ++g) {
      const size_t members = groups()[g].size();
      if (members == 0) continue;
      write_param_group(g == 0, step, id, static_cast<int64_t>(members));
      id += static_cast<int64_t>(members);
    }
    pickle_.end_list();
    pickle_.end_dict();
  }

  void write_adam_state(int64_t step) {
    pickle_.begin_dict();
    int64_t id = 0;
    for (const auto& group : groups()) {
      for (const Parameter* parameter : group) {
        pickle_.integer(id++), pickle_.begin_dict();
        // PyTorch's AdamW counts here, apex's FusedAdam in the group.
        key("step"), constant(full({}, static_cast<float>(step), DType::kFloat32, Stream{}));
        for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
          key(kind), tensor(kind, *parameter, DType::kFloat32);
        }
        pickle_.end_dict();
      }
    }
    pickle_.end_dict();
  }

  void write_param_group(bool is_with_decay, int64_t step, int64_t first, int64_t members) {
    const ArgMap& args = contents_.args;
    pickle_.begin_dict();
    key("wd_mult"), pickle_.number(is_with_decay ? 1.0 : 0.0);
    key("lr_mult"), pickle_.number(1.0);
    key("is_expert_parallel"), pickle_.boolean(false);
    key("lr"), pickle_.number(value_or(args, "lr", 0.0));
    key("bias_correction"), pickle_.boolean(true);
    key("betas"), pickle_.begin_tuple();
    pickle_.number(value_or(args, "adam_beta1", 0.9));
    pickle_.number(value_or(args, "adam_beta2", 0.999));
    pickle_.end_tuple();
    key("eps"), pickle_.number(value_or(args, "adam_eps", 1e-8));
    key("weight_decay"), pickle_.number(is_with_decay ? value_or(args, "weight_decay", 0.0) : 0.0);
    key("step"), pickle_.integer(step);
    if (!is_distributed()) {
      key("params"), pickle_.begin_list();
      for (int64_t id = first; id < first + members; ++id) pickle_.integer(id);
      pickle_.end_list();
    }
    pickle_.end_dict();
  }

  void write_args() {
    ArgMap args = contents_.args;
    const int64_t layers = layers_in(contents_);
    const int64_t chunks = layout_.virtual_pipeline_model_parallel_size;
    const int64_t stages = layout_.pipeline_model_parallel_size;
    args["num_layers"] = args["encoder_num_layers"] = layers;
    if (kind_ == ModelKind::kT5) {
      args["num_layers"] = args["encoder_num_layers"] = layers_in(contents_, "encoder");
      args["decoder_num_layers"] = layers_in(contents_, "decoder");
      args["pipeline_model_parallel_split_rank"] =
          stages_.split_rank() > 0 ? ArgValue(stages_.split_rank()) : ArgValue();
    }
    args["tensor_model_parallel_size"] = layout_.tensor_model_parallel_size;
    args["pipeline_model_parallel_size"] = stages;
    args["transformer_pipeline_model_parallel_size"] = stages;
    args["virtual_pipeline_model_parallel_size"] = chunks > 1 ? ArgValue(chunks) : ArgValue();
    args["num_layers_per_virtual_pipeline_stage"] =
        chunks > 1 ? ArgValue(layers / (stages * chunks)) : ArgValue();
    args["world_size"] = layout_.tensor_model_parallel_size * stages * layout_.data_parallel_size;
    args["rank"] = pipeline_ * layout_.tensor_model_parallel_size + tensor_;
    args["data_parallel_size"] = layout_.data_parallel_size;
    args["context_parallel_size"] = int64_t{1};
    args["expert_model_parallel_size"] = int64_t{1};
    args["use_distributed_optimizer"] = layout_.use_distributed_optimizer;
    if (layout_.use_distributed_optimizer) {
      args["accumulate_allreduce_grads_in_fp32"] = grad_dtype() == DType::kFloat32;
    }
    if (layout_.tensor_model_parallel_size == 1) args["sequence_parallel"] = false;
    args["params_dtype"] = weights_dtype_;
    args["fp16"] = weights_dtype_ == DType::kFloat16;
    args["bf16"] = weights_dtype_ == DType::kBFloat16;
    args["padded_vocab_size"] = weights_.at(kWords).shape[0];
    args["untie_embeddings_and_output_weights"] = weights_.contains(kOutput);
    args["use_mcore_models"] = is_core(layout_.naming);
    const bool is_fused = layout_.naming == MegatronNaming::kLegacyFused ||
                          layout_.naming == MegatronNaming::kCoreFused;
    args["transformer_impl"] = std::string(is_fused ? "transformer_engine" : "local");
    args["iteration"] = contents_.iteration;
    args["consumed_train_samples"] = contents_.consumed_train_samples;
    args["consumed_valid_samples"] = contents_.consumed_valid_samples;
    if (is_core(layout_.naming) && args.contains("norm_epsilon")) {
      args["layernorm_epsilon"] = args["norm_epsilon"];  // later versions
    }
    pickle_.begin_namespace();
    for (const auto& [name, value] : args) key(name), pickle_.value(value);
    pickle_.end_namespace();
  }

  // Gradients of bf16 are always summed in fp32.
  DType grad_dtype() const {
    const bool is_fp32 = weights_dtype_ == DType::kBFloat16 ||
                         value_or(contents_.args, "accumulate_allreduce_grads_in_fp32", false);
    return is_fp32 ? DType::kFloat32 : weights_dtype_;
  }

  static Tensor bytes_tensor(const std::string& bytes) {
    Tensor y({static_cast<int64_t>(bytes.size())}, DType::kUInt8, Stream{});
    std::ranges::copy(bytes, static_cast<char*>(y.view().data));
    return y;
  }

  void write_random_states() {
    // Compat: the seeds of Megatron-LM's ranks.
    const auto seed =
        static_cast<uint64_t>(value_or<int64_t>(contents_.args, "seed", 1234) + 100 * pipeline_);
    pickle_.begin_list();
    pickle_.begin_dict();
    key("random_rng_state"), pickle_.begin_tuple();
    pickle_.integer(3);
    pickle_.begin_tuple();
    for (const uint32_t word : mt19937_words_of_array(static_cast<uint32_t>(seed))) {
      pickle_.integer(word);
    }
    pickle_.integer(624);
    pickle_.end_tuple();
    pickle_.none();
    pickle_.end_tuple();
    key("np_rng_state"), pickle_.begin_tuple();
    pickle_.text("MT19937");
    pickle_.uint32_array(mt19937_words(static_cast<uint32_t>(seed)));
    pickle_.integer(624), pickle_.integer(0), pickle_.number(0.0);
    pickle_.end_tuple();
    key("torch_rng_state"), constant(bytes_tensor(torch_random_state(seed)));
    key("cuda_rng_state"), constant(bytes_tensor(cuda_random_state(seed)));
    key("rng_tracker_states"), pickle_.begin_dict();
    const auto rank = static_cast<uint64_t>(tensor_);
    key("data-parallel-rng"), constant(bytes_tensor(cuda_random_state(seed)));
    key("model-parallel-rng"), constant(bytes_tensor(cuda_random_state(seed + 2718 + rank)));
    key("expert-parallel-rng"), constant(bytes_tensor(cuda_random_state(seed + 1024 + rank)));
    pickle_.end_dict();
    pickle_.end_dict();
    pickle_.end_list();
  }

  const CheckpointContents& contents_;
  const MegatronLayout& layout_;
  const StoredSection& weights_;
  int64_t tensor_;
  int64_t pipeline_;
  TorchWriter writer_;
  PickleWriter& pickle_;
  ModelKind kind_;
  ParameterTable table_;
  MegatronStages stages_;
  DType weights_dtype_ = DType::kFloat32;
  std::vector<Chunk> chunks_;
  std::vector<std::function<void()>> elements_;  // of the announced tensors
};

}  // namespace

std::vector<std::string> problems(const CheckpointContents& contents,
                                  const MegatronLayout& layout) {
  std::vector<std::string> found = stage_problems(contents, layout);
  const ModelKind kind = kind_of(contents);
  const int64_t ranks = layout.tensor_model_parallel_size;
  const ArgMap& args = contents.args;
  const auto heads = value_or<int64_t>(args, "num_attention_heads", 0);
  const int64_t groups = value_or(args, "group_query_attention", false)
                             ? value_or<int64_t>(args, "num_query_groups", heads)
                             : heads;
  if (groups % ranks != 0) {
    found.push_back(fmt::format(
        "{} query groups cannot be divided among {} tensor parallel ranks; choose a divisor of {}",
        groups, ranks, groups));
  }
  const ParameterTable table = parameter_table(kind, is_gated(args));
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  if (kind == ModelKind::kBert && !weights.contains("binary_head.weight") &&
      weights.contains("embedding.tokentype_embeddings.weight")) {
    found.emplace_back(
        "the model has token types and no binary head; Megatron-LM knows both together or neither");
  }
  for (const auto& [name, tensor] : weights) {
    std::optional<int64_t> layer;
    const std::string pattern = without_layer(name, layer);
    if (layer && *layer > 0) continue;
    try {
      megatron_name(kind, layout.naming, pattern);
      table.at(pattern).sharding.on_rank(0, ranks).local(tensor.shape);
    } catch (const Error& error) {
      found.push_back(fmt::format("{}: {}", name, error.what()));
    }
  }
  return found;
}

void write_megatron_files(const fs::path& directory, const CheckpointContents& contents,
                          const MegatronLayout& layout) {
  const std::vector<std::string> found = problems(contents, layout);
  if (!found.empty()) throw ConfigError(found);
  for (int64_t pipeline = 0; pipeline < layout.pipeline_model_parallel_size; ++pipeline) {
    for (int64_t tensor = 0; tensor < layout.tensor_model_parallel_size; ++tensor) {
      const fs::path folder =
          directory / (layout.pipeline_model_parallel_size == 1
                           ? fmt::format("mp_rank_{:02}", tensor)
                           : fmt::format("mp_rank_{:02}_{:03}", tensor, pipeline));
      fs::create_directories(folder);
      RankWriter writer(folder / "model_optim_rng.pt", contents, layout, tensor, pipeline);
      if (writer.is_distributed()) writer.write_flat_state(folder / "distrib_optim.pt");
      writer.write();
    }
  }
}

}  // namespace megatron
