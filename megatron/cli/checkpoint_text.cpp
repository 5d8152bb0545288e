#include "megatron/cli/checkpoint_text.h"

#include <fmt/format.h>

namespace megatron::cli {

std::string contents_text(const CheckpointContents& contents) {
  std::string text;
  for (const auto& [section, tensors] : contents.sections) {
    int64_t elements = 0;
    for (const auto& [name, tensor] : tensors) elements += tensor.shape.numel();
    text += fmt::format("{}: {} tensors, {} elements\n", section, tensors.size(), elements);
    for (const auto& [name, tensor] : tensors) {
      text += fmt::format("  {} {} {}", name, name_of(tensor.dtype), tensor.shape.str());
      if (tensor.pieces.size() != 1) text += fmt::format(" in {} pieces", tensor.pieces.size());
      text += "\n";
    }
  }
  if (!text.empty()) text.pop_back();
  return text;
}

}  // namespace megatron::cli
