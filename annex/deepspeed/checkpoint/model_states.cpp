#include "annex/deepspeed/checkpoint/model_states.h"

#include <fmt/format.h>

#include <set>

#include "megatron/core/error.h"
#include "megatron/interchange/megatron/files.h"

namespace megatron {

std::vector<std::pair<std::string, const PyTensor*>> module_parameters(const TorchFile& file) {
  const PyValue root = file.root();
  std::set<std::string> left_out;
  if (const PyValue* buffers = root.find("buffer_names")) {
    for (const PyValue name : buffers->items()) left_out.emplace(name.text().value_or(""));
  }
  if (const PyValue* aliases = root.find("shared_params")) {
    for (const auto& [alias, name] : aliases->entries())
      left_out.emplace(alias.text().value_or(""));
  }
  std::vector<std::pair<std::string, const PyTensor*>> parameters;
  const PyValue* module = root.find("module");
  if (module == nullptr) return parameters;
  for (const auto& [path, value] : flattened(*module)) {
    if (value.tensor() != nullptr && !left_out.contains(path)) {
      parameters.emplace_back(path, value.tensor());
    }
  }
  return parameters;
}

std::vector<NamedShapes> parameter_shapes(const TorchFile& file) {
  const auto fail = [&](const char* what) {
    throw FormatError(fmt::format("{}: param_shapes {}", file.path().string(), what));
  };
  std::vector<NamedShapes> groups;
  const PyValue* stored = file.root().find("param_shapes");
  if (stored == nullptr) return groups;
  const bool is_only_group = stored->is_dict();
  for (size_t g = 0; g < (is_only_group ? 1 : stored->items().size()); ++g) {
    const PyValue group = is_only_group ? *stored : stored->items()[g];
    NamedShapes& parameters = groups.emplace_back();
    for (const auto& [name, extents] : group.entries()) {
      if (!name.text() || extents.items().size() > Shape::kMaxDims) {
        fail("is not a list of names and shapes");
      }
      std::vector<int64_t> shape;
      int64_t numel = 1;
      for (const PyValue extent : extents.items()) {
        shape.push_back(extent.integer().value_or(-1));
        if (shape.back() < 0 || __builtin_mul_overflow(numel, shape.back(), &numel)) {
          fail("has a shape that is none");
        }
      }
      parameters.emplace_back(*name.text(), Shape(shape));
    }
  }
  return groups;
}

}  // namespace megatron
