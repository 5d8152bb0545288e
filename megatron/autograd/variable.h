#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/tensor/tensor.h"

// The gradient graph. An op records a closure whose captures are its saved activations. A node
// holds closures and edges, never the data of its inputs, so nothing else is kept alive.
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
// For an op with several outputs; dys[i] is undefined if nothing depends on output i.
using JointBackwardFunction =
    std::function<Grads(const std::vector<Tensor>& dys, const Wants& wants)>;

// The accumulator of a leaf's gradient: the main gradient, in fp32 or the parameter's dtype. An op
// that can add into it directly (a weight-gradient product with beta = 1) captures the sink, which
// avoids a temporary; other ops return the gradient and the engine adds it.
class GradSink {
 public:
  GradSink() = default;
  // True if the leaf has a main gradient; only then may the op add into it.
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
  // Replaces a leaf's elements by others of the same shape (a slice of a flat parameter buffer).
  void set_data(Tensor data);

  const Shape& shape() const { return data().shape(); }
  int64_t size(int axis) const { return data().size(axis); }
  DType dtype() const { return data().dtype(); }
  Stream stream() const { return data().stream(); }

  bool requires_grad() const;
  // From now on the leaf is a constant. Call before an op uses it.
  void make_constant();
  // The gradient of a leaf: its main gradient if it has one; undefined before the first backward.
  const Tensor& grad() const;
  void clear_grad();
  // From now on gradients of this leaf are added into `main_grad` (same shape, own dtype).
  void set_main_grad(Tensor main_grad);
  GradSink grad_sink() const;
  // From now on backward() calls `done` each time an op that used this leaf has delivered its
  // gradient. Null: no more calls.
  void on_gradient(std::function<void()> done);
  // From now on `done` is called after each op of a forward pass that has this leaf as an input:
  // the op has queued its reads of the elements. is_recorded: backward() will run the op, too,
  // and call on_gradient's function for it. Null: no more calls.
  void on_op(std::function<void(bool is_recorded)> done);
  // From now on `use` is called before any handle gives access to the elements, which may still be
  // arriving. Null: no more calls.
  void on_use(std::function<void()> use);

  // Releases the elements of an output that was sent to another rank. The graph keeps its closures'
  // captures, and backward() still works.
  void release_data();

  // A constant with the same data.
  Variable detached() const { return Variable(data()); }

 private:
  friend std::vector<Variable> record_outputs(const char*, std::vector<Tensor>,
                                              const std::vector<Variable>&, JointBackwardFunction);
  friend void backward(std::span<const Variable>, std::span<const Tensor>);
  struct Node;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Makes the output `y` of an op named `name`. In grad mode, if an input requires a gradient, the
// closure becomes a node of the graph; otherwise it is dropped and y is a constant.
Variable record(const char* name, Tensor y, const std::vector<Variable>& inputs,
                BackwardFunction backward);
// The same for several outputs: one node, which runs when all their gradients are complete.
std::vector<Variable> record_outputs(const char* name, std::vector<Tensor> ys,
                                     const std::vector<Variable>& inputs,
                                     JointBackwardFunction backward);

// Runs the graph from the roots `ys` in reverse order of recording. Every op runs once, after the
// gradients of all its outputs are complete. dys[i] has the shape and dtype of ys[i]; undefined: no
// gradient. A root may be a leaf and may occur twice. The result does not depend on threads.
// Closures, and so saved activations, are freed after use: a graph runs once. Re-entrant.
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
// While it lives, ops of this thread record again, even inside NoGrad (recompute()'s backward
// pass).
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
