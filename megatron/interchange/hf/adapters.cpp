#include "megatron/interchange/hf/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/parallel_for.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/parallel/tensor/lora.h"

namespace megatron {
namespace {

// An adapter in the section of weights.
struct StoredAdapter {
  std::string layer;  // "decoder.layers.0.mlp.linear_fc1"
  StoredTensor a;     // [rank, in]; of experts [experts, rank, in]
  StoredTensor b;     // [out, rank]; [experts, out, rank]
};

std::string end_of_a() { return fmt::format(".{}.{}", kAdapter, kLoraA); }
std::string end_of_b() { return fmt::format(".{}.{}", kAdapter, kLoraB); }

std::vector<StoredAdapter> adapters_of(const CheckpointContents& contents) {
  std::vector<StoredAdapter> adapters;
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const std::string end = end_of_a();
  for (const auto& [name, a] : weights) {
    if (!name.ends_with(end)) continue;
    const std::string layer = name.substr(0, name.size() - end.size());
    const auto b = weights.find(layer + end_of_b());
    if (b == weights.end()) {
      throw FormatError(fmt::format("{}: the adapter of {} has no {}", contents.directory.string(),
                                    layer, kLoraB));
    }
    adapters.push_back({layer, a, b->second});
  }
  return adapters;
}

Tensor read_fp32(const StoredTensor& tensor) { return cast(read_whole(tensor), DType::kFloat32); }

std::span<float> floats_of(Tensor& tensor) {
  return {static_cast<float*>(tensor.view().data), static_cast<size_t>(tensor.numel())};
}

// weight += scale * b a.   weight [.., out, in]   a [.., rank, in]   b [.., out, rank], all fp32
void add_product(Tensor& weight, Tensor& a, Tensor& b, float scale) {
  const int64_t out = weight.size(-2);
  const int64_t in = weight.size(-1);
  const int64_t rank = a.size(-2);
  const std::span<float> w = floats_of(weight);
  const std::span<const float> as = floats_of(a);
  const std::span<const float> bs = floats_of(b);
  parallel_for(weight.numel() / in, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / out * rank;  // row of a, of this expert
      for (int64_t k = 0; k < rank; ++k) {
        const float factor = scale * bs[static_cast<size_t>(row * rank + k)];
        for (int64_t i = 0; i < in; ++i) {
          w[static_cast<size_t>(row * in + i)] +=
              factor * as[static_cast<size_t>((first + k) * in + i)];
        }
      }
    }
  });
}

StoredTensor merged(const StoredTensor& weight, const StoredAdapter& adapter, double scale) {
  return tensor_in_one_piece(weight.shape, weight.dtype,
                             [weight, a = adapter.a, b = adapter.b, scale] {
                               Tensor sum = read_fp32(weight);
                               Tensor rows = read_fp32(a);
                               Tensor columns = read_fp32(b);
                               add_product(sum, rows, columns, static_cast<float>(scale));
                               const Tensor rounded = cast(sum, weight.dtype);
                               return FileElements{rounded.view(), rounded};
                             });
}

// The last two parts of a dotted path: "attn.c_attn"; one more before the number of an expert.
std::string short_name(const std::string& module) {
  size_t dot = module.rfind('.');
  const auto go_back = [&] {
    if (dot != std::string::npos && dot > 0) dot = module.rfind('.', dot - 1);
  };
  go_back();
  if (dot != std::string::npos && module[dot + 1] >= '0' && module[dot + 1] <= '9') go_back();
  return dot == std::string::npos ? module : module.substr(dot + 1);
}

// The tensors of the file, and the layers that they adapt.
struct PeftTensors {
  std::map<std::string, Tensor> tensors;
  std::set<std::string> modules;
};

// The A of the expert whose part is number `part` of the tensors that `rows` names.
Tensor matrix_of(const Tensor& a, size_t part, const TensorMapping& rows) {
  const auto parts = static_cast<int64_t>(rows.theirs.size()) / a.size(0);
  return a.slice(static_cast<int64_t>(part) / parts, 1).reshape({a.size(1), a.size(2)});
}

PeftTensors peft_tensors(const CheckpointContents& contents, const TransformerConfig& config,
                         const HfFamily& family) {
  const NameTable table = hf_names(family, config);
  const LayoutSizes sizes{config.num_attention_heads, config.num_query_groups, config.kv_channels,
                          config.counted_vocab_size()};
  PeftTensors file;
  for (const StoredAdapter& adapter : adapters_of(contents)) {
    const std::vector<TensorSpec> weight = {{adapter.layer + ".weight", adapter.b.dtype,
                                             adapter.b.shape.with(-1, adapter.a.shape[-1])}};
    TensorMapping rows = mapped(table, weight).front();
    const bool has_experts = adapter.a.shape.rank() == 3;
    if (has_experts && rows.theirs.size() == 1 && adapter.a.shape[0] > 1) {
      throw Unsupported(fmt::format(
          "{}: {} is one tensor of all experts, for whose adapters PEFT has no linear layers; "
          "convert the checkpoint to a Hugging Face folder, which merges them",
          adapter.layer, rows.theirs.front()));
    }
    rows.ours = {adapter.layer, adapter.b.dtype, adapter.b.shape};
    rows.layout = layout_of_rows(rows.layout);
    const Tensor a = read_whole(adapter.a);
    const Tensor b = read_whole(adapter.b);
    for (size_t part = 0; part < rows.theirs.size(); ++part) {
      const std::string& name = rows.theirs[part];
      const std::string module = name.substr(0, name.rfind('.'));
      file.modules.insert(short_name(module));
      const std::string prefix = "base_model.model." + module;
      file.tensors[prefix + ".lora_A.weight"] = has_experts ? matrix_of(a, part, rows) : a;
      file.tensors[prefix + ".lora_B.weight"] = to_theirs(rows, part, b.view(), sizes);
    }
  }
  return file;
}

nlohmann::ordered_json peft_config(const TransformerConfig& config, const HfFamily& family,
                                   const std::set<std::string>& modules,
                                   const std::string& base_model) {
  const bool is_transposed = family.model_type == "gpt2";
  return {{"base_model_name_or_path", base_model},
          {"bias", "none"},
          {"fan_in_fan_out", is_transposed},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"lora_alpha", config.lora_alpha},
          {"lora_dropout", config.lora_dropout},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"r", config.lora_rank},
          {"target_modules", modules},
          {"task_type", "CAUSAL_LM"}};
}

}  // namespace

Layout layout_of_rows(Layout weight) {
  if (weight == Layout::kTranspose) return Layout::kSame;
  if (weight == Layout::kQkvThirdsTranspose) return Layout::kQkvThirds;
  return weight;
}

bool is_adapter(std::string_view name) {
  return name.ends_with(end_of_a()) || name.ends_with(end_of_b());
}

bool has_adapters(const CheckpointContents& contents) {
  return std::ranges::any_of(contents.sections.at(kWeightsSection),
                             [](const auto& entry) { return is_adapter(entry.first); });
}

void merge_adapters(CheckpointContents& contents, const TransformerConfig& config) {
  const double scale = config.lora_alpha / static_cast<double>(config.lora_rank);
  StoredSection weights = contents.sections.at(kWeightsSection);
  for (const StoredAdapter& adapter : adapters_of(contents)) {
    StoredTensor& weight = weights.at(adapter.layer + ".weight");
    weight = merged(weight, adapter, scale);
    weights.erase(adapter.layer + end_of_a());
    weights.erase(adapter.layer + end_of_b());
  }
  contents.sections = {{kWeightsSection, std::move(weights)}};
  contents.hashes.clear();
}

void write_peft_adapters(const std::filesystem::path& directory, const CheckpointContents& contents,
                         const TransformerConfig& config, const std::string& base_model) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw IoError(
        fmt::format("{}: cannot create the directory: {}", directory.string(), error.message()));
  }
  const HfFamily& family = hf_family_of(config, hf_model_type_of(contents.args));
  const PeftTensors file = peft_tensors(contents, config, family);
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : file.tensors) {
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  }
  const std::string files[] = {"adapter_config.json", "adapter_model.safetensors"};
  std::filesystem::remove(directory / kChecksumsFile, error);  // of older adapters
  SafetensorsWriter writer(directory / files[1], specs, {{"format", "pt"}});
  for (const TensorSpec& spec : writer.specs()) writer.write(file.tensors.at(spec.name).view());
  writer.commit();
  write_text_atomically(directory / files[0],
                        peft_config(config, family, file.modules, base_model).dump(2) + "\n");
  write_checksums(directory, files);
}

}  // namespace megatron
