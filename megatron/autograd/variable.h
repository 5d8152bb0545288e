#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/tensor/tensor.h"

// The graph of gradients. Ops record a closure; its captures are the saved activations and nothing
// else is kept alive: a node holds closures and edges, never the data of its inputs.
namespace megatron {

class Variable;

// Which inputs of an op need a gradient, by position.
class Wants {
 public:
  explicit Wants(std::vector<bool> wanted) : wanted_(std::move(wanted)) {}
  bool operator[](size_t input) const { return wanted_[input]; }

 private:
  std::vector<bool> wanted_;
};

// The gradients of an op's inputs, by position. Undefined: not wanted, zero, or already accumulated
// through the input's GradSink.
using Grads = std::vector<Tensor>;

// dy has the shape and dtype of the op's output.
using BackwardFunction = std::function<Grads(const Tensor& dy, const Wants& wants)>;
// Of an op with several outputs; dys[i] is undefined where nothing depends on output i.
using JointBackwardFunction =
    std::function<Grads(const std::vector<Tensor>& dys, const Wants& wants)>;

// Where the gradient of a leaf is summed up: the fp32 (or parameter-dtype) main gradient. An op
// that can add into it directly (a weight-gradient product with beta = 1) captures the sink and
// saves a tensor; every other op returns the gradient and the engine adds it.
class GradSink {
 public:
  GradSink() = default;
  // True for a leaf that has a main gradient; only then may the op add into it.
  explicit operator bool() const;
  Tensor& main_grad() const;

 private:
  friend class Variable;
  struct Leaf;
  explicit GradSink(std::shared_ptr<Leaf> leaf) : leaf_(std::move(leaf)) {}
  std::shared_ptr<Leaf> leaf_;
};

// A tensor that may be part of a graph. Copies are handles on the same variable.
class Variable {
 public:
  Variable() = default;
  // A constant: no gradient flows into it.
  explicit Variable(Tensor data);
  // A leaf: backward() sums its gradient into grad(), or into main_grad() once that is set.
  static Variable leaf(Tensor data);

  bool defined() const { return impl_ != nullptr; }
  const Tensor& data() const;
  Tensor& mutable_data();
  // Replaces a leaf's elements (a flat parameter buffer takes over); the shape must stay.
  void set_data(Tensor data);

  const Shape& shape() const { return data().shape(); }
  int64_t size(int axis) const { return data().size(axis); }
  DType dtype() const { return data().dtype(); }
  Stream stream() const { return data().stream(); }

  bool requires_grad() const;
  // The gradient of a leaf; undefined before the first backward. With a main gradient: that one.
  const Tensor& grad() const;
  void clear_grad();
  // From now on gradients of this leaf are added into `main_grad` (same shape, own dtype).
  void set_main_grad(Tensor main_grad);
  GradSink grad_sink() const;
  // From now on `done` is called in backward() each time an op that used this leaf has given its
  // gradient. Null: no longer.
  void on_gradient(std::function<void()> done);
  // From now on `use` is called before somebody gets to see the elements, by whatever handle: for
  // elements that are still on their way. Null: no longer.
  void on_use(std::function<void()> use);

  // Gives the elements up; the graph keeps what its closures captured, and backward() works as
  // before. For an output that was sent away.
  void release_data();

  // The same data outside the graph.
  Variable detached() const { return Variable(data()); }

 private:
  friend std::vector<Variable> record_outputs(const char*, std::vector<Tensor>,
                                              const std::vector<Variable>&, JointBackwardFunction);
  friend void backward(std::span<const Variable>, std::span<const Tensor>);
  struct Node;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// The output `y` of an op named `name`. In grad mode, and when an input requires a gradient, the
// closure becomes a node of the graph; otherwise it is dropped and y is a constant.
Variable record(const char* name, Tensor y, const std::vector<Variable>& inputs,
                BackwardFunction backward);
// The same of an op with several outputs: one node, run when all their gradients are there.
std::vector<Variable> record_outputs(const char* name, std::vector<Tensor> ys,
                                     const std::vector<Variable>& inputs,
                                     JointBackwardFunction backward);

// Runs the graph from the roots `ys` in the reverse of the order of recording: one pass, in which
// every op runs once, after the gradients of all its outputs are complete. dys[i] has the shape and
// dtype of ys[i]; undefined: no gradient. A root may be a leaf, and may occur twice. The result
// does not depend on threads. Closures, and so saved activations, are freed as they are used: a
// graph runs once. Re-entrant.
void backward(std::span<const Variable> ys, std::span<const Tensor> dys);
// The same from one root.
void backward(const Variable& y, const Tensor& dy);
// For a scalar y, dy = 1.
void backward(const Variable& y);

// While it lives, ops of this thread record nothing.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};
// While it lives, ops of this thread record (inside a NoGrad region: recompute's replay).
class EnableGrad {
 public:
  EnableGrad();
  ~EnableGrad();
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  bool previous_;
};
bool grad_enabled();

}  // namespace megatron
