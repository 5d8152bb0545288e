#include "megatron/optim/state_memory.h"

#include <cmath>

namespace megatron {

double fp16_scale(const OptimizerConfig& config) {
  return config.clip_grad > 0.0 ? std::exp2(15 - std::ceil(std::log2(config.clip_grad))) : 1.0;
}

kernels::MomentCode StateSpec::code(const OptimizerConfig& config) const {
  return {.scale = static_cast<float>(fp16_scale(config)), .is_root = is_root};
}

StateMemory::StateMemory(int64_t size, DType dtype, Stream stream) {
  if (dtype == DType::kFloat8E4M3) {
    elements = zeros({size}, dtype, stream);
    exponents =
        zeros({(size + kernels::kMomentBlock - 1) / kernels::kMomentBlock}, DType::kUInt8, stream);
  } else {
    elements = full({size}, 0, dtype, stream);  // uses all threads: there may be many gigabytes
  }
}

StateMemory StateMemory::slice(int64_t begin, int64_t size) const {
  constexpr int64_t kBlock = kernels::kMomentBlock;
  StateMemory part;
  part.elements = elements.slice(begin, size);
  if (exponents.defined()) {
    part.exponents = exponents.slice(begin / kBlock, (size + kBlock - 1) / kBlock);
  }
  return part;
}

bool StateMemory::is_code() const {
  return elements.defined() && (elements.dtype() == DType::kFloat16 || exponents.defined());
}

kernels::Moment StateMemory::moment() const {
  Tensor of = elements;  // the same memory
  Tensor blocks = exponents;
  return {of.view(), blocks.defined() ? blocks.view() : TensorView{}};
}

}  // namespace megatron
