#include "megatron/optim/update_rule.h"

namespace megatron {
namespace {

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(double momentum) : momentum_(momentum) {}

  std::vector<StateSpec> state() const override { return {{.name = "momentum_buffer"}}; }

  void update(const RuleInput& in, Stream stream) const override {
    const auto numbers =
        numbers_of<kernels::SgdNumbers>(in.groups, [&](const ParameterGroup& group) {
          return kernels::SgdNumbers{.lr = group.learning_rate(in.rates),
                                     .momentum = momentum_,
                                     .weight_decay = group.weight_decay(in.rates)};
        });
    kernels::sgd_momentum(in.model, in.main, in.state[0].moment().elements, in.grad, in.ranges,
                          numbers, in.decision, stream);
  }

 private:
  const double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd_rule(const OptimizerConfig& config) {
  return std::make_unique<SgdRule>(config.sgd_momentum);
}

}  // namespace megatron
