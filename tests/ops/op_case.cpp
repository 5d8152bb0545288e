#include "tests/ops/op_case.h"

#include <algorithm>
#include <cmath>

namespace megatron {
namespace {

struct Evaluation {
  Tensor y;
  std::vector<Tensor> grads;
};

// The weights of the loss sum(w * y), in the dtype of y.
Tensor loss_weights(const Tensor& y) {
  return random_normal(y.shape(), {.seed = 0xDECADE, .dtype = y.dtype()});
}

std::vector<Variable> leaves_of(const std::vector<Tensor>& inputs) {
  std::vector<Variable> leaves;
  for (const Tensor& input : inputs) leaves.push_back(Variable::leaf(copied(input)));
  return leaves;
}

Evaluation evaluate(const OpFunction& op, const std::vector<Tensor>& inputs) {
  const std::vector<Variable> leaves = leaves_of(inputs);
  const Variable y = op(leaves);
  Evaluation result{copied(y.data()), {}};  // a copy: the backward pass may overwrite y
  backward(y, loss_weights(y.data()));
  for (const Variable& leaf : leaves) result.grads.push_back(leaf.grad());
  return result;
}

double loss_of(const OpFunction& op, const std::vector<Tensor>& inputs) {
  const NoGrad no_grad;
  std::vector<Variable> constants;
  for (const Tensor& input : inputs) constants.emplace_back(input);
  const Tensor y = op(constants).data();
  const Tensor weights = loss_weights(y);
  double loss = 0;
  for (int64_t i = 0; i < y.numel(); ++i) loss += element(weights, i) * element(y, i);
  return loss;
}

// d loss / d inputs[which][i], with an error of the fourth order in the step.
double difference(const OpCase& c, std::vector<Tensor> inputs, size_t which, int64_t i) {
  inputs[which] = copied(inputs[which]);
  float& x = inputs[which].span<float>()[static_cast<size_t>(i)];
  const float at = x;
  const auto loss_at = [&](double steps) {
    x = at + static_cast<float>(steps * c.step);
    return loss_of(c.op, inputs);
  };
  const double near = loss_at(1) - loss_at(-1);
  const double far = loss_at(2) - loss_at(-2);
  return (8 * near - far) / (12 * c.step);
}

void check_gradients(const OpCase& c) {
  const Evaluation got = evaluate(c.op, c.inputs);
  for (size_t which = 0; which < c.inputs.size(); ++which) {
    const Tensor& grad = got.grads[which];
    ASSERT_TRUE(grad.defined()) << c.name << ": input " << which << " got no gradient";
    double largest = 1;
    for (int64_t i = 0; i < grad.numel(); ++i) {
      largest = std::max(largest, std::abs(element(grad, i)));
    }
    for (int64_t i = 0; i < grad.numel(); ++i) {
      const double want = difference(c, c.inputs, which, i);
      ASSERT_NEAR(element(grad, i), want, c.gradient_tolerance * largest)
          << c.name << ": gradient of input " << which << ", element " << i << " of "
          << grad.shape().str() << ", against central differences";
    }
  }
}

void expect_same(const OpCase& c, const Evaluation& got, const Evaluation& want,
                 Tolerance tolerance, const std::string& what) {
  expect_close(got.y, want.y, tolerance, c.name + what + ": y");
  for (size_t i = 0; i < got.grads.size(); ++i) {
    expect_close(got.grads[i], want.grads[i], tolerance,
                 c.name + what + ": gradient of input " + std::to_string(i));
  }
}

void check_reference(const OpCase& c) {
  const Tolerance tolerance = tolerance_of(DType::kFloat32).for_terms(4 * c.terms);
  if (c.expected != nullptr) {
    expect_close(evaluate(c.op, c.inputs).y, c.expected(c.inputs), tolerance,
                 c.name + " as defined");
  }
  if (c.reference == nullptr) return;
  expect_same(c, evaluate(c.op, c.inputs), evaluate(c.reference, c.inputs), tolerance,
              " against its reference");
}

void check_dtype(const OpCase& c, DType dtype) {
  std::vector<Tensor> narrow = c.inputs;
  std::vector<Tensor> wide = c.inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (std::count(c.fp32_inputs.begin(), c.fp32_inputs.end(), i) > 0) continue;
    narrow[i] = cast(c.inputs[i], dtype);
    wide[i] = cast(narrow[i], DType::kFloat32);
  }
  const Evaluation got = evaluate(c.op, narrow);
  const std::vector<Variable> leaves = leaves_of(wide);
  const Variable y = c.op(leaves);
  Evaluation want{copied(y.data()), {}};
  backward(y, cast(loss_weights(got.y), y.dtype()));
  for (const Variable& leaf : leaves) want.grads.push_back(leaf.grad());
  expect_same(c, got, want, tolerance_of(dtype).for_terms(c.terms),
              " in " + std::string(name_of(dtype)));
}

void check_main_grads(const OpCase& c) {
  const Evaluation want = evaluate(c.op, c.inputs);
  const std::vector<Variable> leaves = leaves_of(c.inputs);
  for (Variable leaf : leaves) {
    leaf.set_main_grad(full(leaf.shape(), 0.5f, DType::kFloat32, leaf.stream()));
  }
  const Variable y = c.op(leaves);
  backward(y, loss_weights(y.data()));
  for (size_t i = 0; i < leaves.size(); ++i) {
    Tensor sum = full(leaves[i].shape(), 0.5f, DType::kFloat32, leaves[i].stream());
    add_inplace(sum, want.grads[i]);
    expect_close(leaves[i].grad(), sum, tolerance_of(DType::kFloat32).for_terms(4 * c.terms),
                 c.name + ": main gradient of input " + std::to_string(i));
  }
}

}  // namespace

void check(const OpCase& c) {
  const testing::ScopedTrace trace(__FILE__, __LINE__, c.name);
  if (c.check_differences) check_gradients(c);
  check_reference(c);
  for (const DType dtype : c.dtypes) check_dtype(c, dtype);
  check_main_grads(c);
}

}  // namespace megatron
