#include "megatron/checkpoint/fp8_state.h"

namespace megatron {

bool is_fp8_state(std::string_view name) { return name.find(".fp8.") != std::string_view::npos; }

void drop_fp8_state(CheckpointContents& contents) {
  for (auto& [section, tensors] : contents.sections) {
    std::erase_if(tensors, [](const auto& tensor) { return is_fp8_state(tensor.first); });
  }
}

}  // namespace megatron
