#include "megatron/interchange/hf/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/hf/quantized.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/model_specs.h"

namespace megatron {
namespace {

LayoutSizes sizes_of(const HfModel& model) {
  const TransformerConfig& config = model.transformer;
  return {config.num_attention_heads, config.num_query_groups, config.kv_channels,
          model.vocab_size};
}

bool is_zero(const StoredTensor& tensor) {
  const FileElements elements = whole_elements(tensor);
  return std::ranges::all_of(bytes_of(elements.view),
                             [](std::byte b) { return b == std::byte{0}; });
}

// The folder without quantized weights.
std::shared_ptr<const ShardedWeights> plain_weights(
    const std::shared_ptr<const ShardedWeights>& folder, const HfModel& model) {
  if (model.quantization == nullptr) return folder;
  const auto plain = dequantized(folder, *model.quantization, model.transformer.params_dtype);
  // Compat: AutoGPTQ gives each linear layer a bias, of zeros where the model has none.
  const NameTable table = hf_names(*model.family, model.transformer);
  std::set<std::string> known;
  for (const TensorMapping& tensor : mapped(table, hf_tensors(model))) {
    known.insert(tensor.theirs.begin(), tensor.theirs.end());
  }
  StoredSection tensors = plain->tensors();
  std::erase_if(tensors, [&](const auto& entry) {
    const std::string& name = entry.first;
    return name.ends_with(".bias") && !known.contains(name) &&
           !known.contains(std::string(table.optional_prefix) + name) && is_zero(entry.second);
  });
  return std::make_shared<const ShardedWeights>(folder->path(), std::move(tensors));
}

}  // namespace

NameTable hf_names(const HfFamily& family, const TransformerConfig& config) {
  NameTable table = family.names(config);
  if (config.untie_embeddings_and_output_weights) return table;
  // A tied output layer may be in the file a second time.
  for (const NameRule& rule : table.rules) {
    if (rule.ours != "output_layer.weight") continue;
    table.copies.push_back({"embedding.word_embeddings.weight", std::string(rule.theirs[0])});
  }
  return table;
}

std::vector<TensorSpec> hf_tensors(const HfModel& model) {
  if (model.class_names.empty()) return model_tensors(model.transformer);
  const BertHeads heads = {.classifier = "classification_head",
                           .num_classes = std::ssize(model.class_names)};
  std::vector<TensorSpec> tensors;
  for (const Parameter& parameter :
       bert_specs(model.transformer, whole_model(model.transformer.num_layers), heads)) {
    tensors.push_back(parameter.whole());
  }
  return tensors;
}

StoredSection open_hf_weights(const std::shared_ptr<const ShardedWeights>& file,
                              const HfModel& model) {
  return open_mapped(plain_weights(file, model), hf_names(*model.family, model.transformer),
                     hf_tensors(model), sizes_of(model));
}

namespace {

// The pooler of a file that has one.
void add_pooler(const ShardedWeights& file, const HfModel& model, std::vector<TensorSpec>& ours) {
  constexpr const char* kOurs = "pooler.dense.weight";
  const bool has_one =
      std::ranges::any_of(ours, [](const TensorSpec& spec) { return spec.name == kOurs; });
  if (has_one || file.find("bert.pooler.dense.weight") == nullptr) return;
  const int64_t h = model.transformer.hidden_size;
  const DType dtype = model.transformer.params_dtype;
  ours.push_back({kOurs, dtype, {h, h}});
  ours.push_back({"pooler.dense.bias", dtype, {h}});
}

}  // namespace

CheckpointContents open_hf_checkpoint(const std::filesystem::path& directory, const HfModel& model,
                                      HfPooler pooler) {
  const auto file = plain_weights(std::make_shared<const ShardedWeights>(directory), model);
  const auto count = static_cast<int64_t>(file->tensors().size());
  if (model.transformer.num_layers > count) {  // before a list of its parameters is made
    throw FormatError(fmt::format("{}: config.json says {} layers, but the weights are {} tensors",
                                  directory.string(), model.transformer.num_layers, count));
  }
  CheckpointContents contents;
  contents.directory = directory;
  std::vector<TensorSpec> ours = hf_tensors(model);
  if (pooler == HfPooler::kIfThere) add_pooler(*file, model, ours);
  contents.sections[kWeightsSection] =
      open_mapped(file, hf_names(*model.family, model.transformer), ours, sizes_of(model));
  return contents;
}

void save_hf_model(const std::filesystem::path& directory, const HfModel& model,
                   std::span<const TensorSpec> ours, int64_t max_shard_bytes,
                   const TensorSource& source, WeightsFormat format) {
  write_text_atomically(directory / "config.json", hf_config_text(model));
  save_mapped(directory, hf_names(*model.family, model.transformer), ours, sizes_of(model),
              max_shard_bytes, source, format);
}

}  // namespace megatron
