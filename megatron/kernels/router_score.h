#pragma once

namespace megatron {

// How a router of experts makes scores of its logits.
enum class RouterScore {
  kSoftmax,
  kSigmoid,       // sigmoid(logit) (DeepSeek-V3, arXiv:2412.19437)
  kSqrtSoftplus,  // sqrt(softplus(logit))
};

}  // namespace megatron
