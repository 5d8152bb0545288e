#pragma once

#include <functional>

#include "megatron/autograd/recompute.h"
#include "megatron/transformer/forward_context.h"

namespace megatron {

// A part of a model that the backward pass computes again.
using Region = std::function<Variable(const Variable& x, const ForwardContext& context)>;

// y = region(x, context), storing x alone (recompute()). The Variables of the context get gradients
// from the region, and its auxiliary losses are the context's.
Variable recompute_region(const Region& region, const Variable& x, const ForwardContext& context,
                          const StoredForm& form = {});

// The context without Variables, and without a list of auxiliary losses: what the backward pass may
// keep.
ForwardContext constants_of(const ForwardContext& context);

}  // namespace megatron
