#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "megatron/autograd/variable.h"

namespace megatron {

// The gradients of weights that a backward pass leaves for later, so that gradients of activations
// reach the stage before sooner (Qi et al. 2023, arXiv:2401.10241, sec. 2). Each holds its op's
// input and output gradient until run().
class DelayedGradients {
 public:
  // While it lives, backward passes of this thread leave such gradients to `later`.
  class Scope {
   public:
    explicit Scope(DelayedGradients& later);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DelayedGradients* previous_;
  };

  // For an op's backward pass: the value of make(), which adds the gradient of the sink's leaf to
  // its main gradient or returns it. In a Scope, if there is a main gradient, make() runs later and
  // the result is undefined. make holds tensors, not Variables.
  template <class Make>
  static Tensor now_or_later(const GradSink& sink, Make make) {
    if (!delays(sink)) return make();
    add(sink, std::move(make));
    return {};
  }
  static bool delays(const GradSink& sink);

  // Adds the gradients in the order in which ops left them, and then calls on_gradient's functions.
  // REQUIRES: no Scope.
  void run();

 private:
  friend void backward(std::span<const Variable>, std::span<const Tensor>);
  struct Entry {
    GradSink sink;
    std::function<Tensor()> make;
    const char* op = nullptr;  // the trace ranges that its time counts for
    const char* enclosing_work = nullptr;
    std::function<void()> delivered = {};  // calls on_gradient's function
  };

  static DelayedGradients* current();  // of this thread's Scope; null
  static void add(const GradSink& sink, std::function<Tensor()> make);

  std::vector<Entry> entries_;
};

}  // namespace megatron
