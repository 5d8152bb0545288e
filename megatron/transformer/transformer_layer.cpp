#include "megatron/transformer/transformer_layer.h"

#include <utility>

#include "megatron/autograd/recompute.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "megatron/parallel/context/sequence.h"

namespace megatron {

TransformerLayer::TransformerLayer(std::vector<ResidualBranch> branches, const TensorParallel& tp)
    : tp_(tp), branches_(std::move(branches)) {
  for (const ResidualBranch& branch : branches_) {
    if (branch.norm) add_child(branch.norm_name, *branch.norm);
    add_child(branch.name, *branch.part);
    if (branch.post_norm) add_child(branch.post_norm_name, *branch.post_norm);
  }
}

namespace {

// The input of a branch's part, and the residual stream before the branch. `first` is the same of
// the layer's first branch, undefined for that branch itself.
NormedStream input_of(const ResidualBranch& branch, const ResidualSum& sum,
                      const NormedStream& first) {
  if (!branch.norm) {
    const Variable x = computed(sum);
    const bool is_first = !first.x.defined();
    if (is_first || branch.input == BranchInput::kStream) return {x, x};
    return {x, branch.input == BranchInput::kLayerInput ? first.x : first.y};
  }
  return branch.input == BranchInput::kLayerInput && first.x.defined()
             ? NormedStream{computed(sum), branch.norm->forward(first.x)}
             : branch.norm->forward(sum);
}

// A norm whose output y the backward pass computes again, from x.
struct DroppedNorm {
  const Norm* norm;
  Tensor x;
  Variable y;
};

BiasedOutput after_part(const ResidualBranch& branch, BiasedOutput added) {
  if (branch.post_norm) {
    if (added.bias.defined()) added.y = bias_dropout_add(added.y, added.bias, Variable(), {});
    added = {branch.post_norm->forward(added.y), {}};
  }
  if (branch.multiplier == 1) return added;
  return {scale(added.y, branch.multiplier),
          added.bias.defined() ? scale(added.bias, branch.multiplier) : Variable()};
}

}  // namespace

ResidualSum TransformerLayer::forward(const ResidualSum& x, const ForwardContext& context) const {
  NormedStream first;  // x and its norm, once the first branch has computed them
  ResidualSum sum = x;
  std::vector<DroppedNorm> dropped;
  for (const ResidualBranch& branch : branches_) {
    if (!branch.part->has_input(context)) continue;
    const NormedStream at = input_of(branch, sum, first);
    if (branch.drops_normed) {
      const bool reads_first = branch.input == BranchInput::kLayerInput && first.x.defined();
      dropped.push_back({branch.norm.get(), (reads_first ? first : at).x.data(), at.y});
    }
    if (!first.x.defined()) first = at;
    const BiasedOutput added = after_part(branch, branch.part->forward(at.y, context));
    const Variable& residual = branch.residual_is_normed ? at.y : at.x;
    sum = {added.y, added.bias, residual,
           of_rows(context.random->dropout_key(branch.dropout_site, branch.dropout),
                   residual.size(0), tp_, context.context_parallel)};
  }
  for (const DroppedNorm& normed : dropped) {
    drop_until_used(
        normed.y,
        [norm = normed.norm, in = normed.x] { return norm->forward(Variable(in)).data(); },
        *context.random);
  }
  return sum;
}

}  // namespace megatron
