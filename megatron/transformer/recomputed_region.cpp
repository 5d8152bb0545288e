#include "megatron/transformer/recomputed_region.h"

#include <span>
#include <vector>

namespace megatron {

ForwardContext constants_of(const ForwardContext& context) {
  ForwardContext constants = context;
  constants.encoder.output = constants.sequence.relative_bias = Variable();
  constants.auxiliary_losses = nullptr;
  return constants;
}

Variable recompute_region(const Region& region, const Variable& x, const ForwardContext& context,
                          const StoredForm& form) {
  const std::vector<Variable> outputs = recompute(
      [region, constants = constants_of(context),
       has_losses = context.auxiliary_losses != nullptr](std::span<const Variable> xs) {
        std::vector<Variable> losses;
        ForwardContext inside = constants;
        inside.encoder.output = xs[1];
        inside.sequence.relative_bias = xs[2];
        if (has_losses) inside.auxiliary_losses = &losses;
        std::vector<Variable> ys = {region(xs[0], inside)};
        ys.insert(ys.end(), losses.begin(), losses.end());
        return ys;
      },
      {x, context.encoder.output, context.sequence.relative_bias}, *context.random, form);
  for (size_t i = 1; i < outputs.size(); ++i) context.auxiliary_losses->push_back(outputs[i]);
  return outputs[0];
}

}  // namespace megatron
