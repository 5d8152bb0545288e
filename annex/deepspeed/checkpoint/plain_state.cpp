#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "annex/deepspeed/checkpoint/model_states.h"
#include "annex/deepspeed/checkpoint/state.h"
#include "megatron/checkpoint/contents.h"

namespace megatron {
namespace {

// The parameters that a group of the optimizer has, whose first one has these axes: all, or, if
// there are two groups, as for the decay of weights, the matrices or the vectors.
std::vector<std::pair<std::string, const PyTensor*>> members_of(
    const std::vector<std::pair<std::string, const PyTensor*>>& parameters, size_t groups,
    int axes) {
  std::vector<std::pair<std::string, const PyTensor*>> members;
  for (const auto& parameter : parameters) {
    const bool is_matrix = parameter.second->shape.rank() > 1;
    if (groups == 1 || is_matrix == (axes > 1)) members.push_back(parameter);
  }
  return members;
}

class PlainReader {
 public:
  explicit PlainReader(std::shared_ptr<TorchFile> file)
      : file_(std::move(file)), parameters_(module_parameters(*file_)) {}

  // False if the groups are not those of the module's parameters.
  bool read(PyValue optimizer);
  DeepSpeedState take() { return std::move(result_); }

 private:
  bool read_group(PyValue group, PyValue state, std::span<const PyValue> mains, size_t groups);
  void add(const std::string& kind, const std::string& name, const PyTensor* tensor) {
    result_.kinds[kind][name] = {tensor->dtype, tensor->shape.numel(), [file = file_, tensor] {
                                   FileElements elements = file->elements(*tensor);
                                   elements.view.shape = Shape({tensor->shape.numel()});
                                   return elements;
                                 }};
  }

  std::shared_ptr<TorchFile> file_;
  std::vector<std::pair<std::string, const PyTensor*>> parameters_;
  DeepSpeedState result_;
};

bool PlainReader::read(PyValue optimizer) {
  const PyValue* inner = optimizer.find("optimizer_state_dict");  // of 16-bit training
  const PyValue base = inner != nullptr ? *inner : optimizer;
  const PyValue* groups = base.find("param_groups");
  const PyValue* state = base.find("state");
  if (groups == nullptr || state == nullptr || groups->items().size() > 2) return false;
  const PyValue* mains = optimizer.find("fp32_groups");
  if (inner != nullptr && mains == nullptr) return false;
  for (size_t g = 0; g < groups->items().size(); ++g) {
    std::span<const PyValue> copies;
    if (mains != nullptr) {
      if (g >= mains->items().size()) return false;
      copies = mains->items()[g].items();
    }
    if (!read_group(groups->items()[g], *state, copies, groups->items().size())) return false;
  }
  if (ArgMap scale = loss_scale_of(optimizer); !scale.empty()) {
    result_.scalars["grad_scaler"] = std::move(scale);
  }
  return true;
}

bool PlainReader::read_group(PyValue group, PyValue state, std::span<const PyValue> mains,
                             size_t groups) {
  const PyValue* ids = group.find("params");
  if (ids == nullptr) return false;
  std::vector<PyValue> states;
  for (const PyValue id : ids->items()) {
    const auto found = std::ranges::find_if(
        state.entries(), [&](const auto& entry) { return entry.first.integer() == id.integer(); });
    if (found == state.entries().end()) return false;
    states.push_back(found->second);
  }
  if (states.empty()) return true;
  const auto moment_of = [](PyValue value) {
    const PyValue* moment = value.find("exp_avg");
    return moment != nullptr ? moment->tensor() : nullptr;
  };
  const PyTensor* first = moment_of(states[0]);
  if (first == nullptr) return false;
  const auto members = members_of(parameters_, groups, first->shape.rank());
  if (members.size() != states.size() || (!mains.empty() && mains.size() != states.size())) {
    return false;
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const auto& [name, parameter] = members[i];
    const PyTensor* moment = moment_of(states[i]);
    if (moment == nullptr || !(moment->shape == parameter->shape)) return false;
    for (const auto& [kind, value] : states[i].entries()) {
      const PyTensor* tensor = value.tensor();
      if (kind.text() && tensor != nullptr && tensor->shape == parameter->shape) {
        add(std::string(*kind.text()), name, tensor);
      }
    }
    if (!mains.empty()) {
      const PyTensor* main = mains[i].tensor();
      if (main == nullptr || !(main->shape == parameter->shape)) return false;
      add(kMainParamSection, name, main);
    }
  }
  if (const auto step = number_in(*file_, states[0].find("step"))) {
    result_.scalars["optimizer"]["step"] = static_cast<int64_t>(*step);
  }
  return true;
}

}  // namespace

ArgMap loss_scale_of(PyValue state) {
  const PyValue* scaler = state.find("loss_scaler");
  const PyValue from = scaler != nullptr ? *scaler : state;  // without ZeRO: the state itself
  const auto count = [&](std::string_view key, int64_t otherwise) {
    const PyValue* value = from.find(key);
    return value != nullptr ? value->integer().value_or(otherwise) : otherwise;
  };
  const PyValue* dynamic = state.find("dynamic_loss_scale");
  const PyValue* scale = from.find("cur_scale");
  if (dynamic == nullptr || !dynamic->boolean().value_or(false) || scale == nullptr ||
      !scale->number()) {
    return {};
  }
  // Compat: DeepSpeed counts updates from the last overflow, also beyond a growth of the scale.
  const int64_t window = std::max<int64_t>(count("scale_window", 1), 1);
  const int64_t good = count("cur_iter", 0) - count("last_overflow_iter", -1) - 1;
  return {{"scale", *scale->number()},
          {"growth_tracker", std::max<int64_t>(good, 0) % window},
          {"hysteresis_tracker", count("cur_hysteresis", 1)}};
}

DeepSpeedState read_plain_state(const DeepSpeedRank& rank) {
  const PyValue* optimizer = rank.model->root().find("optimizer");
  if (optimizer == nullptr || !optimizer->is_dict()) return {};
  PlainReader reader(rank.model);
  return reader.read(*optimizer) ? reader.take() : DeepSpeedState();
}

}  // namespace megatron
