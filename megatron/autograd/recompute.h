#pragma once

#include <functional>

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"

namespace megatron {

// How x is stored: pack(x) is kept, and unpack() of it gives x back. Null: as it is.
struct StoredForm {
  std::function<Tensor(const Tensor& x)> pack;
  std::function<Tensor(const Tensor& packed)> unpack;
};

// fn(x), storing x alone: the activations inside are computed again in the backward pass
// (Chen et al. 2016, arXiv:1604.06174). `random` is the state that dropouts inside fn use; its
// position is put back for the replay. fn must be a pure function of x, parameters and `random`;
// it is kept until the backward pass.
Variable recompute(std::function<Variable(const Variable&)> fn, const Variable& x,
                   RandomState& random, StoredForm form = {});

}  // namespace megatron
