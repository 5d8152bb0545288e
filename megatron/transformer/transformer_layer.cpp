#include "megatron/transformer/transformer_layer.h"

#include <utility>

#include "megatron/parallel/context/sequence.h"

namespace megatron {

TransformerLayer::TransformerLayer(std::vector<ResidualBranch> branches, const TensorParallel& tp)
    : tp_(tp), branches_(std::move(branches)) {
  for (const ResidualBranch& branch : branches_) {
    add_child(branch.norm_name, *branch.norm);
    add_child(branch.name, *branch.part);
  }
}

ResidualSum TransformerLayer::forward(const ResidualSum& x, const ForwardContext& context) const {
  Variable input;  // x, once the first norm has computed it
  ResidualSum sum = x;
  for (const ResidualBranch& branch : branches_) {
    if (!branch.part->has_input(context)) continue;
    const NormedStream at = branch.input == BranchInput::kLayerInput && input.defined()
                                ? NormedStream{computed(sum), branch.norm->forward(input)}
                                : branch.norm->forward(sum);
    if (!input.defined()) input = at.x;
    const BiasedOutput added = branch.part->forward(at.y, context);
    const Variable& residual = branch.residual_is_normed ? at.y : at.x;
    sum = {added.y, added.bias, residual,
           of_rows(context.random->dropout_key(branch.dropout_site, branch.dropout),
                   residual.size(0), tp_, context.context_parallel)};
  }
  return sum;
}

}  // namespace megatron
