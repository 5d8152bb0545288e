#include "megatron/autograd/recompute.h"

#include "megatron/device/trace.h"

#include <utility>

namespace megatron {

Variable recompute(std::function<Variable(const Variable&)> fn, const Variable& x,
                   RandomState& random, StoredForm form) {
  const TraceRange range("recompute", x.stream());
  if (!grad_enabled()) return fn(x);

  Tensor y;
  {
    const NoGrad no_grad;
    y = fn(x).data();
  }
  // A leaf even when x needs no gradient: the parameters inside fn do.
  Variable anchor = x.requires_grad() ? x : Variable::leaf(x.data());
  return record("recompute", std::move(y), {anchor},
                [fn = std::move(fn), packed = form.pack ? form.pack(x.data()) : x.data(),
                 unpack = std::move(form.unpack), random = &random,
                 at = random](const Tensor& dy, const Wants&) -> Grads {
                  const RandomState now = std::exchange(*random, at);
                  const Variable input = Variable::leaf(unpack ? unpack(packed) : packed);
                  {
                    const EnableGrad enable;
                    backward(fn(input), dy);
                  }
                  *random = now;
                  return {input.grad()};
                });
}

}  // namespace megatron
