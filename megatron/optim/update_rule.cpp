#include "megatron/optim/update_rule.h"

#include "megatron/core/error.h"

namespace megatron {

std::unique_ptr<UpdateRule> make_element_rule(const OptimizerConfig& config) {
  switch (config.optimizer) {
    case OptimizerKind::kAdam:
    case OptimizerKind::kMuon:
      return make_adam_rule(config);
    case OptimizerKind::kSgd:
      return make_sgd_rule(config);
    case OptimizerKind::kLion:
      return make_lion_rule(config);
  }
  throw InternalError("make_element_rule: unknown optimizer");
}

}  // namespace megatron
