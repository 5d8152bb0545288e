#pragma once

#include <functional>
#include <span>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"

namespace megatron {

// Returns a stored tensor; called once.
using Restore = std::function<Tensor()>;
// Stores a tensor for the backward pass. Null: the tensor itself is kept.
using StoredForm = std::function<Restore(const Tensor& x)>;

using RecomputedFunction = std::function<std::vector<Variable>(std::span<const Variable> xs)>;

// Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): computes fn(xs) and stores only xs
// (the first input in the form `first_form`, before fn runs); the backward pass recomputes the
// activations inside. Inputs after the first may be undefined. `random` is the state that dropouts
// inside fn use; the recomputation restores its position.
//
// fn is kept until the backward pass. It must be a pure function of xs, parameters and `random`:
// pass outputs of other ops as inputs, never as captures, because a captured graph would run once
// in each region.
std::vector<Variable> recompute(RecomputedFunction fn, const std::vector<Variable>& xs,
                                RandomState& random, const StoredForm& first_form = {});
// The same for one input and one output.
Variable recompute(std::function<Variable(const Variable&)> fn, const Variable& x,
                   RandomState& random, const StoredForm& form = {});

// Frees the memory of y, a result of ops that were recorded, until it is used again, which takes
// what make() computes without gradients: the same elements, in memory of their own. `random` as
// above. Call it when the forward pass needs y no more; the ops that use y keep its memory alive,
// those that made y keep what their own gradients need. No effect outside grad mode.
//
// make is kept as long as y: it captures parameters, and data of Variables, not Variables.
void drop_until_used(const Variable& y, std::function<Tensor()> make, RandomState& random);

}  // namespace megatron
