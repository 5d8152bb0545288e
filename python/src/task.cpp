#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "bindings.h"

namespace megatron::python {
namespace {

const char* name_of_split(Split split) {
  return split == Split::kTrain ? "train" : split == Split::kValid ? "valid" : "test";
}

template <class T>
nb::object numpy_copy(std::span<const T> values, std::vector<size_t> shape) {
  auto* const copy = new std::vector<T>(values.begin(), values.end());
  const nb::capsule owner(copy,
                          [](void* held) noexcept { delete static_cast<std::vector<T>*>(held); });
  return nb::cast(nb::ndarray<nb::numpy, T>(copy->data(), shape.size(), shape.data(), owner));
}

// Any array or sequence as contiguous numbers of numpy's type.
nb::object contiguous(nb::handle values, const char* dtype) {
  const nb::object numpy = nb::module_::import_("numpy");
  return numpy.attr("ascontiguousarray")(values, nb::arg("dtype") = dtype);
}

template <class T>
void read_back(nb::handle values, const char* name, const char* dtype, std::vector<T>& into) {
  const nb::object array = contiguous(values, dtype);
  const auto read = nb::cast<nb::ndarray<const T, nb::c_contig, nb::device::cpu>>(array);
  if (read.size() != into.size()) {
    throw ShapeError("adjust_batch: " + std::string(name) + " has " + std::to_string(read.size()) +
                     " elements, and must have " + std::to_string(into.size()));
  }
  std::copy_n(read.data(), read.size(), into.begin());
}

// A sequence of Python as samples. Those of an array are read without the interpreter's lock.
class PythonSamples final : public SampleDataset {
 public:
  // REQUIRES: the lock is held.
  PythonSamples(const nb::object& samples, int64_t least, int64_t size)
      : samples_(kept(samples)),
        length_(static_cast<int64_t>(nb::len(samples))),
        num_samples_(std::max(length_, least)),
        size_(size) {
    if (length_ == 0) throw ConfigError("samples: an empty sequence has no sample");
    nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> rows;
    if (nb::try_cast(samples, rows) && static_cast<int64_t>(rows.shape(1)) == size) {
      rows_ = rows.data();
    }
  }

  // A shorter sequence is read again from its beginning.
  int64_t num_samples() const override { return num_samples_; }
  int64_t sample_size() const override { return size_; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    if (sample < 0 || sample >= num_samples_) throw Error("samples: no such sample");
    const int64_t index = sample % length_;
    if (rows_ != nullptr) {
      std::copy_n(rows_ + index * size_, size_, out.begin());
      return;
    }
    const nb::gil_scoped_acquire acquire;
    const nb::object array = contiguous((*samples_)[nb::int_(index)], "int64");
    const auto tokens = nb::cast<Ids>(array);
    if (static_cast<int64_t>(tokens.size()) != size_) {
      throw ShapeError("samples: sample " + std::to_string(index) + " has " +
                       std::to_string(tokens.size()) + " tokens, and must have " +
                       std::to_string(size_));
    }
    std::copy_n(tokens.data(), tokens.size(), out.begin());
  }

 private:
  const std::shared_ptr<nb::object> samples_;
  const int64_t length_;
  const int64_t num_samples_;
  const int64_t size_;
  const int64_t* rows_ = nullptr;
};

// Calls the functions of a task in Python; see python/megatron_cpp/task.py.
class PythonTask final : public api::Task {
 public:
  // REQUIRES: the lock is held.
  PythonTask(const nb::object& task, ModelKind kind) : task_(kept(task)) {
    const nb::object base = nb::module_::import_("megatron_cpp.task").attr("Task");
    const auto overrides = [&](const char* name) {
      return nb::hasattr(task, name) && !task.type().attr(name).is(base.attr(name));
    };
    has_samples_ = overrides("samples");
    has_batch_ = overrides("adjust_batch");
    has_parameter_ = overrides("adjust_parameter");
    if (nb::hasattr(task, "loss_name")) loss_name_ = nb::cast<std::string>(task.attr("loss_name"));
    if (kind != ModelKind::kGpt && (has_samples_ || has_batch_)) {
      throw ConfigError(
          "samples() and adjust_batch() of a task are for a gpt, and the model is a " +
          std::string(name_of(kind)) + "; give train_step() batches in their place");
    }
    const nb::object inputs =
        nb::hasattr(task, "loss_inputs") ? nb::object(task.attr("loss_inputs")) : nb::none();
    if (inputs.is_none()) return;
    const auto name = nb::cast<std::string>(inputs);
    if (name == "token_losses") {
      inputs_ = api::LossInputs::kTokenLosses;
    } else if (name == "logits") {
      inputs_ = api::LossInputs::kLogits;
    } else {
      throw ConfigError("loss_inputs " + name + " is not known; use token_losses or logits");
    }
  }

  std::shared_ptr<const SampleDataset> samples(Split split, int64_t num_samples,
                                               int64_t tokens) const override {
    if (!has_samples_) return nullptr;
    const nb::gil_scoped_acquire acquire;
    const nb::object made = task_->attr("samples")(name_of_split(split), num_samples, tokens);
    if (made.is_none()) return nullptr;
    return std::make_shared<PythonSamples>(made, num_samples, tokens);
  }

  void adjust_batch(GptBatch& batch, Split split) const override {
    if (!has_batch_) return;
    const nb::gil_scoped_acquire acquire;
    const std::vector<size_t> shape = {static_cast<size_t>(batch.micro_batch_size),
                                       static_cast<size_t>(batch.seq_length)};
    nb::object seen = nb::module_::import_("types").attr("SimpleNamespace")();
    seen.attr("tokens") = numpy_copy<int64_t>(batch.tokens, shape);
    seen.attr("labels") = numpy_copy<int64_t>(batch.labels, shape);
    seen.attr("loss_mask") = numpy_copy<float>(batch.loss_mask, shape);
    seen.attr("loss_divisor") = batch.loss_divisor;
    task_->attr("adjust_batch")(seen, name_of_split(split));
    read_back(seen.attr("labels"), "labels", "int64", batch.labels);
    read_back(seen.attr("loss_mask"), "loss_mask", "float32", batch.loss_mask);
    batch.loss_divisor = nb::cast<float>(seen.attr("loss_divisor"));
  }

  std::string loss_name() const override { return loss_name_; }
  api::LossInputs loss_inputs() const override { return inputs_; }

  api::LossResult loss(const api::LossInput& input) const override {
    const nb::gil_scoped_acquire acquire;
    const auto of = [](const api::Tensor& tensor) {
      return tensor.data == nullptr ? nb::none() : nb::cast(tensor);
    };
    const nb::object made = task_->attr("_evaluate_loss")(
        of(input.values), of(input.tokens), of(input.labels), of(input.loss_mask),
        name_of_split(input.split), input.wants_gradient);
    const auto result = nb::cast<nb::tuple>(made);
    api::LossResult loss;
    loss.loss = nb::cast<double>(result[0]);
    if (input.wants_gradient) loss.gradient = tensor_of_array(result[1]);
    for (const auto [name, value] : nb::cast<nb::dict>(result[2])) {
      loss.logged.emplace_back(nb::cast<std::string>(name), nb::cast<double>(value));
    }
    return loss;
  }

  void adjust_parameter(std::string_view name, std::span<const int64_t> shape,
                        api::ParameterOptions& options) const override {
    if (!has_parameter_) return;
    const nb::gil_scoped_acquire acquire;
    const nb::object seen = nb::cast(options);
    const std::vector<int64_t> dims(shape.begin(), shape.end());
    task_->attr("adjust_parameter")(std::string(name), nb::tuple(nb::cast(dims)), seen);
    options = nb::cast<api::ParameterOptions>(seen);
  }

 private:
  const std::shared_ptr<nb::object> task_;
  bool has_samples_ = false;
  bool has_batch_ = false;
  bool has_parameter_ = false;
  std::string loss_name_ = "lm loss";
  api::LossInputs inputs_ = api::LossInputs::kNone;
};

}  // namespace

std::unique_ptr<api::Task> make_task(nb::object task, ModelKind kind) {
  if (task.is_none()) return std::make_unique<api::Task>();
  return std::make_unique<PythonTask>(task, kind);
}

void bind_task(nb::module_& m) {
  nb::class_<api::ParameterOptions>(m, "ParameterOptions",
                                    "The optimizer's treatment of a parameter.")
      .def_rw("has_weight_decay", &api::ParameterOptions::has_weight_decay)
      .def_rw("lr_mult", &api::ParameterOptions::lr_mult, "Multiplies the learning rate.");
}

}  // namespace megatron::python
