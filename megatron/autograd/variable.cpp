#include "megatron/autograd/variable.h"

#include <algorithm>
#include <atomic>
#include <queue>
#include <utility>

#include "megatron/autograd/delayed_gradients.h"
#include "megatron/core/error.h"
#include "megatron/core/turns.h"
#include "megatron/device/trace.h"

namespace megatron {

// A leaf's gradient, shared by the variable and the sinks that ops captured.
struct GradSink::Leaf {
  Tensor grad;
  bool is_main = false;  // grad is a main gradient: add, never replace
  std::function<void()> done;
  std::function<void(bool is_recorded)> op_done;
};

// One recorded op, or a leaf (then `leaf` is set and there are no inputs).
struct Variable::Node {
  const char* name = "leaf";
  const char* enclosing_work = nullptr;  // the trace range that its time counts for
  int64_t order = 0;                     // position in the order of recording
  struct Output {
    Shape shape;
    DType dtype = DType::kFloat32;
    Tensor dy;  // gradients summed so far in the running backward pass
  };
  std::vector<Output> outputs;
  struct Input {
    std::shared_ptr<Node> node;  // null: needs no gradient
    size_t output = 0;           // output of that node
  };
  std::vector<Input> inputs;
  JointBackwardFunction backward;
  std::shared_ptr<GradSink::Leaf> leaf;

  ~Node();
};

struct Variable::Impl {
  Tensor data;
  std::shared_ptr<Node> node;  // null: a constant
  size_t output = 0;           // output of that node
  std::function<void()> use;   // on_use()
};

// Frees a deep graph in a loop; recursion would take one stack frame per op.
Variable::Node::~Node() {
  std::vector<Input> doomed = std::move(inputs);
  while (!doomed.empty()) {
    const std::shared_ptr<Node> node = std::move(doomed.back().node);
    doomed.pop_back();
    if (node == nullptr || node.use_count() > 1) continue;
    for (Input& input : node->inputs) doomed.push_back(std::move(input));
    node->inputs.clear();
  }
}

namespace {

// Each rank is a thread with its own grad mode.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
thread_local ThreadMode<bool> recording(true);

int64_t next_order() {
  static std::atomic<int64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

// sum += dy, without changing tensors that have other owners.
void accumulate(Tensor& sum, const Tensor& dy) {
  if (!sum.defined()) {
    sum = dy;
    return;
  }
  if (!sum.is_sole_owner()) sum = copied(sum);
  add_inplace(sum, dy);
}

}  // namespace

GradSink::operator bool() const { return leaf_ != nullptr && leaf_->is_main; }

Tensor& GradSink::main_grad() const {
  invariant(leaf_ != nullptr && leaf_->is_main, "only a main gradient is added into");
  return leaf_->grad;
}

Variable::Variable(Tensor data) : impl_(std::make_shared<Impl>()) { impl_->data = std::move(data); }

Variable Variable::leaf(Tensor data) {
  Variable variable(std::move(data));
  auto node = std::make_shared<Node>();
  node->order = next_order();
  node->outputs = {{variable.shape(), variable.dtype(), Tensor()}};
  node->leaf = std::make_shared<GradSink::Leaf>();
  variable.impl_->node = std::move(node);
  return variable;
}

const Tensor& Variable::data() const {
  invariant(defined(), "a used variable is defined");
  if (impl_->use) impl_->use();
  return impl_->data;
}

Tensor& Variable::mutable_data() {
  invariant(defined(), "a used variable is defined");
  if (impl_->use) impl_->use();
  return impl_->data;
}

void Variable::set_data(Tensor data) {
  expect_shape(data.shape(), shape(), "set_data: data");
  impl_->data = std::move(data);
  if (impl_->node != nullptr) impl_->node->outputs[0].dtype = impl_->data.dtype();
}

void Variable::release_data() { mutable_data() = Tensor(); }

bool Variable::requires_grad() const { return defined() && impl_->node != nullptr; }

void Variable::make_constant() {
  invariant(defined() && (!requires_grad() || impl_->node->leaf != nullptr),
            "only a leaf becomes a constant");
  impl_->node = nullptr;
}

const Tensor& Variable::grad() const {
  invariant(requires_grad() && impl_->node->leaf != nullptr, "only a leaf has a gradient");
  return impl_->node->leaf->grad;
}

void Variable::clear_grad() {
  invariant(requires_grad() && impl_->node->leaf != nullptr, "only a leaf has a gradient");
  impl_->node->leaf->grad = Tensor();
  impl_->node->leaf->is_main = false;
}

void Variable::set_main_grad(Tensor main_grad) {
  invariant(requires_grad() && impl_->node->leaf != nullptr, "only a leaf has a gradient");
  expect_shape(main_grad.shape(), shape(), "set_main_grad: main_grad");
  impl_->node->leaf->grad = std::move(main_grad);
  impl_->node->leaf->is_main = true;
}

GradSink Variable::grad_sink() const {
  return GradSink(requires_grad() ? impl_->node->leaf : nullptr);
}

void Variable::on_gradient(std::function<void()> done) {
  invariant(requires_grad() && impl_->node->leaf != nullptr, "only a leaf has a gradient");
  impl_->node->leaf->done = std::move(done);
}

void Variable::on_op(std::function<void(bool is_recorded)> done) {
  invariant(requires_grad() && impl_->node->leaf != nullptr, "only a leaf has a gradient");
  impl_->node->leaf->op_done = std::move(done);
}

void Variable::on_use(std::function<void()> use) {
  invariant(defined(), "a used variable is defined");
  impl_->use = std::move(use);
}

Variable record(const char* name, Tensor y, const std::vector<Variable>& inputs,
                BackwardFunction backward) {
  return record_outputs(
      name, {std::move(y)}, inputs,
      [backward = std::move(backward)](const std::vector<Tensor>& dys, const Wants& wants) {
        return backward(dys[0], wants);
      })[0];
}

std::vector<Variable> record_outputs(const char* name, std::vector<Tensor> ys,
                                     const std::vector<Variable>& inputs,
                                     JointBackwardFunction backward) {
  std::vector<Variable> results;
  results.reserve(ys.size());
  for (Tensor& y : ys) results.emplace_back(std::move(y));
  bool any = false;
  for (const Variable& input : inputs) any = any || input.requires_grad();
  if (!any) return results;
  for (const Variable& input : inputs) {
    if (!input.requires_grad() || input.impl_->node->leaf == nullptr) continue;
    const auto& op_done = input.impl_->node->leaf->op_done;
    if (op_done) op_done(recording.get());
  }
  if (!recording.get()) return results;

  auto node = std::make_shared<Variable::Node>();
  node->name = name;
  node->enclosing_work = enclosing_work();
  node->order = next_order();
  for (const Variable& input : inputs) {
    if (input.defined()) {
      node->inputs.push_back({input.impl_->node, input.impl_->output});
    } else {
      node->inputs.emplace_back();
    }
  }
  node->backward = std::move(backward);
  for (size_t i = 0; i < results.size(); ++i) {
    node->outputs.push_back({results[i].shape(), results[i].dtype(), Tensor()});
    results[i].impl_->node = node;
    results[i].impl_->output = i;
  }
  return results;
}

void backward(std::span<const Variable> ys, std::span<const Tensor> dys) {
  using Node = Variable::Node;
  invariant(ys.size() == dys.size(), "a backward pass has one gradient per root");
  if (std::ranges::none_of(ys, &Variable::requires_grad)) return;
  const TraceRange whole_pass("backward");

  const auto earlier = [](const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) {
    return a->order < b->order;
  };
  // An op is recorded after its inputs, so the gradients of the latest node are always complete.
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, decltype(earlier)>
      ready(earlier);

  const auto deliver = [&ready](const Node::Input& to, const Tensor& grad) {
    const std::shared_ptr<Node>& node = to.node;
    Node::Output& output = node->outputs[to.output];
    expect_shape(grad.shape(), output.shape, node->name);
    if (node->leaf != nullptr) {
      if (node->leaf->is_main) {
        add_inplace(node->leaf->grad, grad);
      } else {
        accumulate(node->leaf->grad, grad);
      }
      return;
    }
    expect_dtype(grad.dtype(), output.dtype, node->name);
    const bool is_first =
        std::none_of(node->outputs.begin(), node->outputs.end(),
                     [](const Node::Output& other) { return other.dy.defined(); });
    accumulate(output.dy, grad);
    if (is_first) ready.push(node);
  };

  for (size_t i = 0; i < ys.size(); ++i) {
    if (!ys[i].requires_grad() || !dys[i].defined()) continue;
    const Variable::Impl& root = *ys[i].impl_;
    const Node::Output& end = root.node->outputs[root.output];
    expect_shape(dys[i].shape(), end.shape, "backward: dy");
    expect_dtype(dys[i].dtype(), end.dtype, "backward: dy");
    deliver({root.node, root.output}, dys[i]);
  }
  while (!ready.empty()) {
    const std::shared_ptr<Node> node = ready.top();
    ready.pop();
    invariant(node->backward != nullptr, "a graph runs backward once");

    std::vector<bool> wanted;
    for (const Node::Input& input : node->inputs) wanted.push_back(input.node != nullptr);
    const JointBackwardFunction run = std::exchange(node->backward, nullptr);
    std::vector<Tensor> complete;  // gradients of the node's outputs
    Stream stream;
    for (Node::Output& output : node->outputs) {
      complete.push_back(std::exchange(output.dy, Tensor()));
      if (complete.back().defined()) stream = complete.back().stream();
    }
    const TraceRange whole(node->enclosing_work);
    const TraceRange range(node->name, stream);
    DelayedGradients* const later = DelayedGradients::current();
    const size_t num_earlier = later != nullptr ? later->entries_.size() : 0;
    Grads grads = run(complete, Wants(std::move(wanted)));
    complete.clear();
    const auto left = later != nullptr ? std::span(later->entries_).subspan(num_earlier)
                                       : std::span<DelayedGradients::Entry>();
    for (DelayedGradients::Entry& entry : left) {
      if (entry.op != nullptr) continue;  // of a nested backward pass
      entry.op = node->name;
      entry.enclosing_work = node->enclosing_work;
    }
    invariant(grads.size() == node->inputs.size(), "an op returns one gradient per input");
    for (size_t i = 0; i < grads.size(); ++i) {
      if (node->inputs[i].node == nullptr || !grads[i].defined()) continue;
      const Tensor grad = std::exchange(grads[i], Tensor());
      deliver(node->inputs[i], grad);
    }
    for (const Node::Input& input : node->inputs) {
      if (input.node == nullptr || input.node->leaf == nullptr) continue;
      const auto& leaf = input.node->leaf;
      const auto late = std::ranges::find_if(left, [&](const DelayedGradients::Entry& entry) {
        return &entry.sink.main_grad() == &leaf->grad;
      });
      if (late != left.end()) {
        late->delivered = [leaf] {
          if (leaf->done) leaf->done();
        };
      } else if (leaf->done) {
        leaf->done();
      }
    }
  }
}

void backward(const Variable& y, const Tensor& dy) {
  backward(std::span(&y, 1), std::span(&dy, 1));
}

void backward(const Variable& y) { backward(y, full(y.shape(), 1.0f, y.dtype(), y.stream())); }

NoGrad::NoGrad() : previous_(recording.set(false)) {}
NoGrad::~NoGrad() { recording.set(previous_); }
EnableGrad::EnableGrad() : previous_(recording.set(true)) {}
EnableGrad::~EnableGrad() { recording.set(previous_); }
bool grad_enabled() { return recording.get(); }

}  // namespace megatron
