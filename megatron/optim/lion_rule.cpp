#include "megatron/optim/update_rule.h"

namespace megatron {
namespace {

class LionRule final : public UpdateRule {
 public:
  explicit LionRule(const OptimizerConfig& config) : config_(config) {}

  std::vector<StateSpec> state() const override {
    return {{.name = "exp_avg", .dtype = config_.exp_avg_dtype}};
  }

  void update(const RuleInput& in, Stream stream) const override {
    const auto numbers =
        numbers_of<kernels::LionNumbers>(in.groups, [&](const ParameterGroup& group) {
          return kernels::LionNumbers{.lr = group.learning_rate(in.rates),
                                      .beta1 = config_.lion_beta1,
                                      .beta2 = config_.lion_beta2,
                                      .weight_decay = group.weight_decay(in.rates),
                                      .fp16_scale = fp16_scale(config_)};
        });
    kernels::lion(in.model, in.main, in.state[0].moment(), in.grad, in.ranges, numbers, in.decision,
                  stream);
  }

 private:
  const OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_lion_rule(const OptimizerConfig& config) {
  return std::make_unique<LionRule>(config);
}

}  // namespace megatron
