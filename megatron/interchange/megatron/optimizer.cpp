#include "megatron/interchange/megatron/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/error.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {
namespace {

class OptimizerReader {
 public:
  OptimizerReader(const RankFiles& rank, const ArgMap& args, const StateSink& sink,
                  std::map<std::string, ArgMap>& scalars)
      : rank_(rank), args_(args), sink_(sink), scalars_(scalars) {}

  void read_optimizer();

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {}", rank_.file->path().string(), what));
  }
  void set_step(double step) { scalars_["optimizer"]["step"] = static_cast<int64_t>(step); }
  void read_wrapper(PyValue wrapper, const std::vector<RankParameter>& all);
  void read_groups(PyValue optimizer, PyValue wrapper, const std::vector<RankParameter>& all);
  void read_flat_state();
  void read_flat_chunk(size_t chunk, PyValue buffers);
  void add_state(const std::string& section, const RankParameter& parameter, PyValue value);

  const RankFiles& rank_;
  const ArgMap& args_;
  const StateSink& sink_;
  std::map<std::string, ArgMap>& scalars_;
};

void OptimizerReader::add_state(const std::string& section, const RankParameter& parameter,
                                PyValue value) {
  const PyTensor* tensor = value.tensor();
  if (tensor == nullptr) return;
  if (!(tensor->shape == parameter.tensor->shape)) {
    fail(fmt::format("{} of {} has shape {}, the parameter {}", section, parameter.path,
                     tensor->shape.str(), parameter.tensor->shape.str()));
  }
  if (parameter.info.is_copy) return;
  sink_(section, parameter, tensor->dtype,
        [file = rank_.file, tensor] { return file->elements(*tensor); });
}

void OptimizerReader::read_optimizer() {
  const PyValue root = rank_.root();
  const PyValue* optimizer = root.find("optimizer");
  if (optimizer == nullptr) return;
  std::vector<RankParameter> all = rank_.parameters();
  std::erase_if(all, [](const RankParameter& parameter) {
    return parameter.info.role == ParameterRole::kBuffer;
  });
  if (!optimizer->is_list()) return read_wrapper(*optimizer, all);
  const auto chain = optimizer->items();
  if (chain.size() == 1) return read_wrapper(chain[0], all);
  // Of dense parameters, and of experts.
  if (chain.size() != 2 || rank_.optimizer_file != nullptr) {
    fail("has several optimizers in a form that is not read; load it with --no-load-optim");
  }
  const auto experts = std::stable_partition(
      all.begin(), all.end(), [](const RankParameter& one) { return !one.is_expert(); });
  read_wrapper(chain[0], {all.begin(), experts});
  read_wrapper(chain[1], {experts, all.end()});
}

void OptimizerReader::read_wrapper(PyValue wrapper, const std::vector<RankParameter>& all) {
  for (const char* old : {"optimizer_state_dict"}) {
    if (const PyValue* inner = wrapper.find(old)) wrapper = *inner;
  }
  read_optimizer_numbers(*rank_.file, wrapper, scalars_);
  const PyValue* inner = wrapper.find("optimizer");
  read_groups(inner != nullptr ? *inner : wrapper, wrapper, all);
  if (rank_.optimizer_file != nullptr) read_flat_state();
}

// The parameters of a group are those of its weight decay, in the order of registration.
void OptimizerReader::read_groups(PyValue optimizer, PyValue wrapper,
                                  const std::vector<RankParameter>& all) {
  const PyValue* groups = optimizer.find("param_groups");
  const PyValue* state = optimizer.find("state");
  if (groups == nullptr) return;
  std::map<int64_t, PyValue> by_id;
  if (state != nullptr) {
    for (const auto& [id, value] : state->entries()) {
      if (id.integer()) by_id[*id.integer()] = value;
    }
  }
  const PyValue* main_names[] = {wrapper.find("fp32_from_fp16_params"),
                                 wrapper.find("fp32_from_fp16")};
  const PyValue* main = main_names[0] != nullptr ? main_names[0] : main_names[1];
  for (size_t g = 0; g < groups->items().size(); ++g) {
    const PyValue group = groups->items()[g];
    const auto number = [&](const char* name) {
      const PyValue* value = group.find(name);
      return value != nullptr ? value->number() : std::nullopt;
    };
    const PyValue* ids = group.find("params");
    if (ids == nullptr || by_id.empty()) continue;  // the state is in another file
    const double decay = number("wd_mult").value_or(number("weight_decay").value_or(1.0));
    std::vector<RankParameter> members;
    for (const RankParameter& parameter : all) {
      const PyValue* decoupled = group.find("is_decoupled_lr");
      const bool is_of_kind = groups->items().size() <= 2 || decoupled == nullptr ||
                              decoupled->boolean() == parameter.info.is_embedding_or_output;
      if (is_of_kind && is_decayed(parameter.info.role) == (decay != 0.0)) {
        members.push_back(parameter);
      }
    }
    if (members.size() != ids->items().size()) {
      fail(
          fmt::format("group {} of the optimizer has {} parameters, the model has {} of its "
                      "kind; load it with --no-load-optim",
                      g, ids->items().size(), members.size()));
    }
    for (size_t k = 0; k < members.size(); ++k) {
      const auto found = by_id.find(ids->items()[k].integer().value_or(-1));
      if (found != by_id.end()) {
        for (const char* kind : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) {
          const PyValue* value = found->second.find(kind);
          if (value != nullptr) add_state(kind, members[k], *value);
        }
        if (const auto step = number_in(*rank_.file, found->second.find("step"))) set_step(*step);
      }
      if (main == nullptr) continue;
      const auto mains =
          g < main->items().size() ? main->items()[g].items() : std::span<const PyValue>();
      if (mains.size() != members.size()) fail("has main parameters of another number");
      add_state(kMainParamSection, members[k], mains[k]);
    }
  }
}

void OptimizerReader::read_flat_state() {
  const PyValue root = rank_.optimizer_file->root();
  for (size_t chunk = 0; chunk < rank_.chunks.size(); ++chunk) {
    const PyValue* buffers = nullptr;
    for (const auto& [key, value] : root.entries()) {
      if (key.integer() == static_cast<int64_t>(chunk)) buffers = &value;
    }
    if (buffers == nullptr || buffers->entries().size() != 1) {
      fail(fmt::format("{} has no buffer {} of one type",
                       rank_.optimizer_file->path().filename().string(), chunk));
    }
    read_flat_chunk(chunk, buffers->entries()[0].second);
  }
}

// A flat buffer has the parameters in reverse order (flat_layout.h). The versions differ in
// alignment and buckets; the sizes in the file say which it is.
void OptimizerReader::read_flat_chunk(size_t chunk, PyValue buffers) {
  std::vector<RankParameter> parameters = rank_.chunks[chunk];
  std::erase_if(parameters, [](const RankParameter& parameter) {
    return parameter.info.role == ParameterRole::kBuffer;
  });
  std::vector<FlatItem> items;
  for (const RankParameter& parameter : parameters) items.push_back({parameter.shape.numel()});
  const auto tensors_of = [&](const char* kind) {
    std::vector<const PyTensor*> tensors;
    const PyValue* value = buffers.find(kind);
    if (value == nullptr) return tensors;
    if (value->tensor() != nullptr) tensors.push_back(value->tensor());
    for (const PyValue item : value->items()) tensors.push_back(item.tensor());
    return tensors;
  };
  const ArgMap& args = args_;
  const int64_t replicas = value_or<int64_t>(args, "data_parallel_size", 1) *
                           value_or<int64_t>(args, "context_parallel_size", 1);
  std::vector<FlatLayout> candidates;
  for (const int64_t alignment : {int64_t{1}, int64_t{64}}) {
    for (const int64_t bucket_alignment : {replicas, std::lcm(replicas, int64_t{128})}) {
      for (const int64_t bucket_size : {int64_t{0}, kMegatronBucketSize}) {
        candidates.push_back(flat_layout(items, {alignment, bucket_size, bucket_alignment}));
      }
    }
  }
  const struct {
    const char* theirs;
    const char* ours;
  } kKinds[] = {{"param", kMainParamSection}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}};
  for (const auto& kind : kKinds) {
    const std::vector<const PyTensor*> buckets = tensors_of(kind.theirs);
    const auto fits = [&](const FlatLayout& layout) {
      if (layout.buckets.size() != buckets.size()) return false;
      for (size_t i = 0; i < buckets.size(); ++i) {
        const FlatBucket& bucket = layout.buckets[i];
        if (buckets[i] == nullptr || buckets[i]->shape.rank() != 1) return false;
        const int64_t numel = buckets[i]->shape[0];
        if (numel != bucket.end - bucket.begin && numel != bucket.unpadded_end - bucket.begin)
          return false;
      }
      return true;
    };
    const auto found = std::ranges::find_if(candidates, fits);
    if (found == candidates.end()) {
      fail(
          fmt::format("the flat buffers {} in {} are not those of the model's parameters; "
                      "load it with --no-load-optim",
                      kind.theirs, rank_.optimizer_file->path().filename().string()));
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].info.is_copy) continue;
      const FlatPlace& place = found->places[i];
      const PyTensor* bucket = buckets[static_cast<size_t>(place.bucket)];
      const int64_t begin = place.begin - found->buckets[static_cast<size_t>(place.bucket)].begin;
      const Shape shape = parameters[i].tensor->shape;
      sink_(kind.ours, parameters[i], bucket->dtype,
            [file = rank_.optimizer_file, bucket, begin, shape] {
              FileElements elements = file->elements(*bucket);
              elements.view.data = static_cast<const std::byte*>(elements.view.data) +
                                   begin * size_of(bucket->dtype);
              elements.view.shape = shape;
              return elements;
            });
    }
  }
}

}  // namespace

void read_optimizer_numbers(const TorchFile& file, PyValue wrapper,
                            std::map<std::string, ArgMap>& scalars) {
  const PyValue* inner = wrapper.find("optimizer");
  const PyValue optimizer = inner != nullptr ? *inner : wrapper;
  const auto set_step = [&](const PyValue* value) {
    const auto step = number_in(file, value);
    if (step) scalars["optimizer"]["step"] = static_cast<int64_t>(*step);
  };
  const PyValue* groups = optimizer.find("param_groups");
  for (const PyValue group : groups != nullptr ? groups->items() : std::span<const PyValue>()) {
    const PyValue* factor = group.find("lr_mult");
    const double lr_mult = factor != nullptr ? factor->number().value_or(1.0) : 1.0;
    if (lr_mult != 1.0) {
      throw Unsupported(
          fmt::format("{}: a group of parameters has lr_mult {}; load it with --no-load-optim",
                      file.path().string(), lr_mult));
    }
    set_step(group.find("step"));
  }
  set_step(optimizer.find_path({"state", "common_step"}));
  if (const PyValue* scaler = wrapper.find("grad_scaler")) read_grad_scaler(file, *scaler, scalars);
}

void read_grad_scaler(const TorchFile& file, PyValue scaler,
                      std::map<std::string, ArgMap>& scalars) {
  const auto scale = number_in(file, scaler.find("scale"));
  if (!scale) return;
  const auto count = [&](const char* name) {
    const PyValue* value = scaler.find(name);
    return value != nullptr ? value->integer().value_or(0) : 0;
  };
  scalars["grad_scaler"] = {{"scale", *scale},
                            {"growth_tracker", count("growth_tracker")},
                            {"hysteresis_tracker", count("hysteresis_tracker")}};
}

void read_megatron_optimizer(const RankFiles& rank, const ArgMap& args, const StateSink& sink,
                             std::map<std::string, ArgMap>& scalars) {
  OptimizerReader(rank, args, sink, scalars).read_optimizer();
}

}  // namespace megatron
