#include "megatron/interchange/hf/peft_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/formats/json_file.h"
#include "megatron/formats/sharded.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/parallel/tensor/lora.h"
#include "megatron/transformer/lora.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kPeftPrefix = "base_model.model.";

// An adapter of one of their layers, fp32.
struct TheirAdapter {
  Tensor a;  // [r, in]
  Tensor b;  // [out, r]
};

// The adapters of one of our layers, one for each of their layers; empty where they have none. The
// parts of an expert follow those of another.
struct LayerAdapters {
  std::string layer;   // "decoder.layers.0.self_attention.linear_qkv"
  TensorMapping rows;  // the arrangement of B's rows
  std::vector<std::optional<TheirAdapter>> parts;
  int64_t experts = 1;
  int64_t in = 0;

  // The parts of a matrix, which is that of a layer or of an expert.
  int64_t parts_of_matrix() const { return std::ssize(parts) / experts; }
  const std::optional<TheirAdapter>& part_of(int64_t expert, int64_t part) const {
    return parts[static_cast<size_t>(expert * parts_of_matrix() + part)];
  }
  // True if all parts of each matrix have the same A, or none.
  bool shares_a() const {
    for (int64_t expert = 0; expert < experts; ++expert) {
      const std::optional<TheirAdapter>& first = part_of(expert, 0);
      for (int64_t i = 1; i < parts_of_matrix(); ++i) {
        const std::optional<TheirAdapter>& part = part_of(expert, i);
        if (part.has_value() != first.has_value()) return false;
        if (part && !std::ranges::equal(part->a.span<float>(), first->a.span<float>()))
          return false;
      }
    }
    return true;
  }
  int64_t rank(int64_t r) const { return shares_a() ? r : r * parts_of_matrix(); }
};

// The shape of a matrix of a layer, or of each expert.   weight [.., out, in]
Shape shape_of_a(const Shape& weight, int64_t rank) { return weight.with(-2, rank); }
Shape shape_of_b(const Shape& weight, int64_t rank) { return weight.with(-1, rank); }

// PEFT settings that our models do not support.
void expect_plain(const json& settings, const fs::path& file) {
  const auto refuse = [&](const char* name, const std::string& why) {
    throw Unsupported(
        fmt::format("{}: {} {} {}", file.string(), name, shortened_json(settings.at(name)), why));
  };
  if (settings.value("peft_type", "LORA") != "LORA") refuse("peft_type", "is not LORA");
  if (settings.contains("bias") && settings["bias"] != "none") {
    refuse("bias", "trains biases, too; only none can be read");
  }
  for (const char* const name : {"use_dora", "use_qalora", "lora_bias"}) {
    if (settings.contains(name) && settings[name] == true) refuse(name, "cannot be read");
  }
  for (const char* const name : {"rank_pattern", "alpha_pattern", "modules_to_save"}) {
    if (settings.contains(name) && !settings[name].empty()) refuse(name, "cannot be read");
  }
}

json adapter_settings(const fs::path& folder) {
  expect_checksum(folder / kConfigFile);
  return read_json(folder / kConfigFile);
}

class Reader {
 public:
  Reader(const fs::path& folder, const TransformerConfig& config, std::string_view model_type)
      : folder_(folder),
        config_(config),
        settings_(adapter_settings(folder)),
        file_(weights_of(folder)),
        table_(hf_names(hf_family_of(config, model_type), config)) {
    expect_plain(settings_, folder / kConfigFile);
    rank_ = settings_.value("r", int64_t{8});
    for (const auto& [name, tensor] : file_.tensors()) unread_.insert(name);
  }

  PeftAdapters read(const StoredSection& base) {
    std::vector<LayerAdapters> found;
    for (const auto& [name, weight] : base) {
      if (std::optional<LayerAdapters> adapters = adapters_of(name, weight)) {
        found.push_back(std::move(*adapters));
      }
    }
    expect_all_read(found.empty());
    PeftAdapters result;
    for (const LayerAdapters& adapters : found) {
      result.rank = std::max(result.rank, adapters.rank(rank_));
    }
    result.alpha = scale() * static_cast<double>(result.rank);
    result.dropout = settings_.value("lora_dropout", 0.0);
    const bool has_experts = std::ranges::any_of(
        found, [](const LayerAdapters& one) { return one.rows.ours.shape.rank() == 3; });
    if (has_experts && result.dropout > 0) {
      warn(fmt::format("{}: lora_dropout {} is read as 0: adapters of experts have no dropout",
                       (folder_ / kConfigFile).string(), result.dropout));
      result.dropout = 0;
    }
    std::set<std::string> layers;
    for (const LayerAdapters& adapters : found) {
      layers.insert(adapters.layer.substr(adapters.layer.rfind('.') + 1));
      store(adapters, result);
    }
    result.layers.assign(layers.begin(), layers.end());
    // A model has adapters in all of its layers; those that the folder lacks are zero and stay so.
    for (const auto& [name, weight] : base) {
      const std::string layer = name.substr(0, name.rfind('.'));
      if (!layers.contains(layer.substr(layer.rfind('.') + 1)) || !name.ends_with(".weight")) {
        continue;
      }
      const std::string a = fmt::format("{}.{}.{}", layer, kAdapter, kLoraA);
      if (result.weights.contains(a)) continue;
      result.weights[a] = {.shape = shape_of_a(weight.shape, result.rank), .pieces = {}};
      result.weights[fmt::format("{}.{}.{}", layer, kAdapter, kLoraB)] = {
          .shape = shape_of_b(weight.shape, result.rank), .pieces = {}};
    }
    return result;
  }

 private:
  static fs::path weights_of(const fs::path& folder) {
    for (const char* const name : {"adapter_model.safetensors", "adapter_model.bin"}) {
      if (fs::exists(folder / name)) return folder / name;
    }
    throw IoError(
        fmt::format("{}: has neither adapter_model.safetensors nor adapter_model.bin beside {}",
                    folder.string(), kConfigFile));
  }

  double scale() const {
    const auto alpha = settings_.value("lora_alpha", 8.0);
    const auto r = static_cast<double>(rank_);
    return settings_.value("use_rslora", false) ? alpha / std::sqrt(r) : alpha / r;
  }

  // A tensor of a module ("transformer.h.0.attn.c_attn"), fp32. Files of models without a head omit
  // the first part of the name.
  std::optional<Tensor> find(std::string_view module, const char* name) {
    std::vector<std::string_view> modules = {module};
    if (!table_.optional_prefix.empty() && module.starts_with(table_.optional_prefix)) {
      modules.push_back(module.substr(table_.optional_prefix.size()));
    }
    for (const std::string_view one : modules) {
      const std::string full = fmt::format("{}{}.{}.weight", kPeftPrefix, one, name);
      const StoredTensor* const tensor = file_.find(full);
      if (tensor == nullptr) continue;
      unread_.erase(full);
      return cast(read_whole(*tensor), DType::kFloat32);
    }
    return std::nullopt;
  }

  std::optional<TheirAdapter> adapter_of(const std::string& weight) {
    const std::string module = weight.substr(0, weight.rfind('.'));
    std::optional<Tensor> a = find(module, "lora_A");
    std::optional<Tensor> b = find(module, "lora_B");
    if (!a && !b) return std::nullopt;
    if (!a || !b || a->rank() != 2 || b->rank() != 2 || a->size(0) != rank_ ||
        b->size(1) != rank_) {
      throw FormatError(
          fmt::format("{}: the adapter of {} needs lora_A [{}, in] and lora_B [out, {}]",
                      folder_.string(), module, rank_, rank_));
    }
    return TheirAdapter{std::move(*a), std::move(*b)};
  }

  std::optional<LayerAdapters> adapters_of(const std::string& name, const StoredTensor& weight) {
    const bool is_adaptable = std::ranges::any_of(kLoraLayers, [&](const char* layer) {
      return name.ends_with(fmt::format(".{}.weight", layer));
    });
    if (!is_adaptable) return std::nullopt;
    const std::vector<TensorSpec> ours = {{name, weight.dtype, weight.shape}};
    LayerAdapters adapters;
    adapters.layer = name.substr(0, name.rfind('.'));
    adapters.rows = mapped(table_, ours).front();
    adapters.rows.layout = layout_of_rows(adapters.rows.layout);
    adapters.in = weight.shape[-1];
    if (weight.shape.rank() == 3 && std::ssize(adapters.rows.theirs) > 1) {
      adapters.experts = weight.shape[0];
    }
    for (const std::string& theirs : adapters.rows.theirs) {
      adapters.parts.push_back(adapter_of(theirs));
    }
    const bool is_empty =
        std::ranges::none_of(adapters.parts, [](const auto& part) { return part.has_value(); });
    if (is_empty) return std::nullopt;
    return adapters;
  }

  void expect_all_read(bool is_empty) const {
    if (!unread_.empty()) {
      throw Unsupported(
          fmt::format("{}: {} belongs to no linear layer of the model; adapters of "
                      "other layers cannot be read",
                      folder_.string(), *unread_.begin()));
    }
    if (is_empty) throw FormatError(folder_.string() + ": has no adapters");
  }

  // Joins the parts of a layer.
  void store(const LayerAdapters& adapters, PeftAdapters& result) const {
    const int64_t rank = result.rank;
    const bool shares_a = adapters.shares_a();
    const Shape& weight = adapters.rows.ours.shape;
    Tensor a = zeros(shape_of_a(weight, rank), DType::kFloat32, Stream{});
    TensorMapping rows = adapters.rows;
    rows.ours = {adapters.layer, DType::kFloat32, shape_of_b(weight, rank)};
    const LayoutSizes sizes{config_.num_attention_heads, config_.num_query_groups,
                            config_.kv_channels, config_.counted_vocab_size()};
    const std::vector<Shape> shapes = their_shapes(rows, sizes);
    std::vector<StoredTensor> parts;
    for (size_t part = 0; part < adapters.parts.size(); ++part) {
      Tensor b = zeros(shapes[part], DType::kFloat32, Stream{});  // [out of the part, rank]
      const int64_t of_matrix = static_cast<int64_t>(part) % adapters.parts_of_matrix();
      const int64_t expert = static_cast<int64_t>(part) / adapters.parts_of_matrix();
      const int64_t first = shares_a ? 0 : of_matrix * rank_;
      if (const std::optional<TheirAdapter>& theirs = adapters.parts[part]) {
        expect_fit(adapters, part, *theirs, b.size(0));
        std::ranges::copy(theirs->a.span<float>(),
                          a.span<float>().begin() + (expert * rank + first) * adapters.in);
        for (int64_t row = 0; row < b.size(0); ++row) {
          std::copy_n(theirs->b.span<float>().begin() + row * rank_, rank_,
                      b.span<float>().begin() + row * rank + first);
        }
      }
      parts.push_back(tensor_in_one_piece(b.shape(), DType::kFloat32, [b] {
        return FileElements{b.view(), b};
      }));
    }
    result.weights[fmt::format("{}.{}.{}", adapters.layer, kAdapter, kLoraA)] =
        tensor_in_one_piece(a.shape(), DType::kFloat32, [a] {
          return FileElements{a.view(), a};
        });
    result.weights[fmt::format("{}.{}.{}", adapters.layer, kAdapter, kLoraB)] =
        from_theirs(rows, std::move(parts), sizes);
  }

  void expect_fit(const LayerAdapters& adapters, size_t part, const TheirAdapter& theirs,
                  int64_t out) const {
    if (theirs.a.size(1) == adapters.in && theirs.b.size(0) == out) return;
    throw FormatError(fmt::format(
        "{}: the adapter of {} has {} inputs and {} outputs, and the layer {} and {}; is "
        "it for another model?",
        folder_.string(), adapters.rows.theirs[part], theirs.a.size(1), theirs.b.size(0),
        adapters.in, out));
  }

  const fs::path folder_;
  const TransformerConfig& config_;
  const json settings_;
  const ShardedWeights file_;
  const NameTable table_;
  int64_t rank_ = 0;
  std::set<std::string> unread_;
};

}  // namespace

bool is_peft_folder(const fs::path& folder) {
  std::error_code unreadable;  // the readers of other formats say so
  return fs::exists(folder / kConfigFile, unreadable) &&
         !fs::exists(folder / "config.json", unreadable);
}

std::string base_model_of(const fs::path& folder) {
  const fs::path file = folder / kConfigFile;
  const json settings = adapter_settings(folder);
  const auto name = settings.find("base_model_name_or_path");
  if (name != settings.end() && name->is_string() && !name->get<std::string>().empty()) {
    return name->get<std::string>();
  }
  throw FormatError(fmt::format(
      "{}: base_model_name_or_path is missing; write the folder of the adapted model there",
      file.string()));
}

PeftAdapters read_peft_adapters(const fs::path& folder, const TransformerConfig& config,
                                const StoredSection& base, std::string_view model_type) {
  return Reader(folder, config, model_type).read(base);
}

}  // namespace megatron
