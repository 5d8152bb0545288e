#include "annex/deepspeed/checkpoint/universal.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annex/deepspeed/checkpoint/hf_module.h"
#include "annex/deepspeed/checkpoint/model_states.h"
#include "annex/deepspeed/checkpoint/names.h"
#include "annex/deepspeed/checkpoint/state.h"
#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/megatron/shard_parts.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUniversal = "zero";
constexpr const char* kRest = "optimizer_state.pt";  // of the state: the loss scale, the groups

// Files of a parameter, and the sections of their tensors.
constexpr std::pair<const char*, const char*> kUniversalKinds[] = {
    {"fp32.pt", kMainParamSection}, {"exp_avg.pt", "exp_avg"}, {"exp_avg_sq.pt", "exp_avg_sq"}};

// The file of a whole tensor: {"param": tensor, ...}, or the tensor alone.
struct WholeTensor {
  std::shared_ptr<TorchFile> file;
  const PyTensor* tensor = nullptr;
  Shape shape;
  const PyTensor* padding = nullptr;  // the row that pads the vocabulary
};

// Compat: of stage 3 ds_to_universal writes tensors of one axis; `shape` is the parameter's, if
// known.
WholeTensor open_whole(const fs::path& path, const Shape* shape) {
  WholeTensor whole;
  whole.file = std::make_shared<TorchFile>(path);
  const PyValue root = whole.file->root();
  const auto entry = [&](const char* key) {
    const PyValue* value = root.is_dict() ? root.find(key) : nullptr;
    return value != nullptr ? value->tensor() : nullptr;
  };
  whole.tensor = root.is_dict() ? entry("param") : root.tensor();
  whole.padding = entry("vocab_divisibility_padding_tensor");
  if (whole.tensor == nullptr) {
    throw FormatError(fmt::format("{}: holds no tensor \"param\"; was it made by ds_to_universal?",
                                  path.string()));
  }
  // With several tensor-parallel ranks, `shape` is that of a shard.
  const bool is_shape = shape != nullptr && shape->numel() == whole.tensor->shape.numel();
  whole.shape = is_shape ? *shape : whole.tensor->shape;
  return whole;
}

// The tensor, padded to `rows` rows; 0: not padded.
StoredTensor stored_of(const WholeTensor& whole, int64_t rows) {
  const Shape& shape = whole.shape;
  StoredTensor stored = tensor_in_one_piece(shape, whole.tensor->dtype, [whole] {
    FileElements elements = whole.file->elements(*whole.tensor);
    elements.view.shape = whole.shape;
    return elements;
  });
  if (shape.rank() != 2 || rows <= shape[0]) return stored;
  stored.shape = Shape({rows, shape[1]});
  if (whole.padding == nullptr) return stored;  // zeros
  const Region added = {{shape[0], 0}, Shape({rows - shape[0], shape[1]})};
  stored.pieces.push_back(
      {added, [whole, added] {
         const Tensor row =
             copy_of(whole.file->elements(*whole.padding).view).reshape({1, added.shape[1]});
         Tensor padding(added.shape, row.dtype(), Stream{});
         for (int64_t i = 0; i < added.shape[0]; ++i) {
           Tensor to = padding.slice(i, 1);
           copy_into(to, row);
         }
         return FileElements{padding.view(), padding};
       }});
  return stored;
}

// The count of updates. Stages 1 and 2 have it for each parameter, stage 3 in the file of the rest.
std::optional<double> step_in(const fs::path& directory, const std::string& parameter) {
  if (const fs::path path = directory / parameter / "step.pt"; fs::exists(path)) {
    const TorchFile file(path);
    const PyValue root = file.root();
    const PyValue* entry = root.is_dict() ? root.find("param") : &root;
    return number_in(file, entry);
  }
  if (!fs::exists(directory / kRest)) return std::nullopt;
  const TorchFile file(directory / kRest);
  const PyValue* states = file.root().find_path({"optimizer_state_dict", "state"});
  if (states == nullptr || states->entries().empty()) return std::nullopt;
  return number_in(file, states->entries()[0].second.find("step"));
}

// Parameters of a model with Megatron-LM's names.
void read_parameters(const fs::path& folder, const std::vector<std::string>& parameters,
                     const std::map<std::string, Shape>& shapes, Parts parts,
                     CheckpointContents& contents) {
  const DeepSpeedNames names(parameters);
  for (const std::string& parameter : parameters) {
    const auto ours = names.ours(parameter, folder.string());
    if (!ours) continue;
    const auto rows =
        has_vocabulary_rows(*ours) ? value_or<int64_t>(contents.args, "padded_vocab_size", 0) : 0;
    const auto shape = shapes.find(parameter);
    for (const auto& [file, section] : kUniversalKinds) {
      const bool is_weight = section == std::string_view(kMainParamSection);
      if (parts == Parts::kWeights && !is_weight) continue;
      contents.sections[section][*ours] = stored_of(
          open_whole(folder / parameter / file, shape == shapes.end() ? nullptr : &shape->second),
          rows);
    }
  }
  contents.sections[kWeightsSection] = contents.sections[kMainParamSection];
  if (parts == Parts::kWeights) contents.sections.erase(kMainParamSection);
}

// Parameters of a transformers model.
void read_hf_universal(const fs::path& folder, const std::vector<std::string>& parameters,
                       const std::map<std::string, Shape>& shapes, Parts parts,
                       CheckpointContents& contents) {
  std::vector<std::pair<std::string, DeepSpeedShard>> weights;
  DeepSpeedState state;
  for (const std::string& parameter : parameters) {
    const auto shape = shapes.find(parameter);
    for (const auto& [file, section] : kUniversalKinds) {
      const bool is_weight = section == std::string_view(kMainParamSection);
      if (parts == Parts::kWeights && !is_weight) continue;
      const fs::path path = folder / parameter / file;
      const WholeTensor whole = open_whole(path, shape == shapes.end() ? nullptr : &shape->second);
      const ElementReader read = [whole] { return whole.file->elements(*whole.tensor); };
      const DType dtype = whole.tensor->dtype;
      if (is_weight) {
        weights.emplace_back(parameter, DeepSpeedShard{path.string(), whole.shape, dtype, read});
      }
      if (parts == Parts::kAll) {
        state.kinds[section][parameter] = {dtype, whole.shape.numel(), read};
      }
    }
  }
  read_hf_module(weights, state, contents);
}

}  // namespace

bool is_universal_checkpoint(const fs::path& directory) {
  return fs::is_directory(directory / kUniversal);
}

void read_universal(const fs::path& directory, const TorchFile& model_states, Parts parts,
                    CheckpointContents& contents) {
  const fs::path folder = directory / kUniversal;
  std::vector<std::string> parameters;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) parameters.push_back(entry.path().filename().string());
  }
  if (parameters.empty()) {
    throw FormatError(
        fmt::format("{}: has no parameters; convert the checkpoint again", folder.string()));
  }
  std::map<std::string, Shape> shapes;
  for (const NamedShapes& group : parameter_shapes(model_states)) {
    shapes.insert(group.begin(), group.end());
  }
  if (are_hf_names(parameters)) {
    read_hf_universal(folder, parameters, shapes, parts, contents);
  } else {
    read_parameters(folder, parameters, shapes, parts, contents);
  }
  if (parts == Parts::kWeights) return;
  if (const auto step = step_in(folder, parameters[0])) {
    contents.scalars["optimizer"]["step"] = static_cast<int64_t>(*step);
  }
  if (!fs::exists(folder / kRest)) return;
  if (ArgMap scale = loss_scale_of(TorchFile(folder / kRest).root()); !scale.empty()) {
    contents.scalars["grad_scaler"] = std::move(scale);
  }
}

}  // namespace megatron
