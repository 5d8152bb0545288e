#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "annex/deepspeed/checkpoint/model_states.h"
#include "annex/deepspeed/checkpoint/state.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

// A flat buffer in the file of a data-parallel rank.
struct FlatPart {
  std::shared_ptr<TorchFile> file;
  const PyTensor* tensor = nullptr;
};

// The buffers of a group, by kind. Those of main parameters are not longer than others.
using GroupBuffers = std::map<std::string, FlatPart>;

// Consecutive elements of a parameter, in the buffers of a group of a rank.
struct Fragment {
  size_t rank = 0;
  size_t group = 0;
  int64_t begin = 0;
  int64_t numel = 0;
};

[[noreturn]] void fail(const TorchFile& file, const std::string& what) {
  throw FormatError(fmt::format("{}: {}", file.path().string(), what));
}

FileElements window_of(const FlatPart& part, int64_t begin, int64_t numel) {
  PyTensor window = *part.tensor;
  window.offset += begin;
  window.shape = Shape({numel});
  window.strides = {1};
  return part.file->elements(window);
}

class ZeroReader {
 public:
  explicit ZeroReader(const DeepSpeedRank& rank);
  DeepSpeedState read();

 private:
  PyValue state_of(size_t rank) const {
    return *rank_.optimizer[rank]->root().find("optimizer_state_dict");
  }
  const TorchFile& file(size_t rank) const { return *rank_.optimizer[rank]; }
  int64_t numel_of(size_t rank, size_t group) const {
    return buffers_[rank][group].at(kMainParamSection).tensor->shape[0];
  }
  void open_buffers(size_t rank);
  void add_buffer(size_t rank, GroupBuffers& group, const std::string& kind, PyValue value);
  void read_shapes();
  void read_slices();
  void cut_groups();
  void cut_parameters();
  void read_step();
  int64_t padding_of(size_t rank, size_t group) const;
  void add_tensors(const std::string& name, const std::vector<Fragment>& fragments);

  const DeepSpeedRank& rank_;
  bool divides_parameters_ = false;                 // stage 3
  std::vector<std::vector<GroupBuffers>> buffers_;  // by data-parallel rank
  std::vector<NamedShapes> groups_;                 // parameter_shapes()
  std::map<std::string, std::vector<Fragment>> fragments_;
  DeepSpeedState result_;
};

ZeroReader::ZeroReader(const DeepSpeedRank& rank)
    : rank_(rank),
      divides_parameters_(state_of(0).find("fp32_flat_groups") != nullptr),
      buffers_(rank.optimizer.size()) {}

void ZeroReader::add_buffer(size_t rank, GroupBuffers& group, const std::string& kind,
                            PyValue value) {
  const PyTensor* tensor = value.tensor();
  if (tensor == nullptr || tensor->shape.rank() == 0) return;  // a step
  if (tensor->shape.rank() != 1 || !tensor->is_contiguous()) {
    fail(file(rank), fmt::format("{} is {}, expected a flat buffer", kind, value.description()));
  }
  group[kind] = {rank_.optimizer[rank], tensor};
}

// The state of group g in a dictionary {g: state}, or in a list.
const PyValue* group_state(PyValue states, size_t g) {
  if (const PyValue* inner = states.find("state")) return group_state(*inner, g);
  if (g < states.items().size()) return &states.items()[g];
  for (const auto& [key, value] : states.entries()) {
    if (key.integer() == static_cast<int64_t>(g)) return &value;
  }
  return nullptr;
}

PyValue base_state(PyValue state, bool divides_parameters) {
  const PyValue* base =
      state.find(divides_parameters ? "optimizer_state_dict" : "base_optimizer_state");
  return base != nullptr ? *base : PyValue();
}

void ZeroReader::open_buffers(size_t rank) {
  const PyValue state = state_of(rank);
  const char* key = divides_parameters_ ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  const PyValue* mains = state.find(key);
  if (mains == nullptr || !mains->is_list()) {
    fail(file(rank), fmt::format("has no {}, as files of this stage of ZeRO have; are all files of "
                                 "one save?",
                                 key));
  }
  const PyValue base = base_state(state, divides_parameters_);
  for (size_t g = 0; g < mains->items().size(); ++g) {
    GroupBuffers& group = buffers_[rank].emplace_back();
    add_buffer(rank, group, kMainParamSection, mains->items()[g]);
    if (group.empty()) fail(file(rank), fmt::format("{}[{}] is no tensor", key, g));
    const PyValue* moments = group_state(base, g);
    if (moments == nullptr) continue;  // before the first step
    for (const auto& [name, value] : moments->entries()) {
      if (name.text()) add_buffer(rank, group, std::string(*name.text()), value);
    }
    for (const auto& [kind, part] : group) {
      // Moments may have the padding that main parameters are stored without.
      const int64_t numel = part.tensor->shape[0];
      const int64_t more = numel - numel_of(rank, g);
      if (more == 0 || more == padding_of(rank, g)) continue;
      fail(file(rank),
           fmt::format("{} of group {} has {} elements, {} has {}; is the file damaged?", kind, g,
                       numel, key, numel_of(rank, g)));
    }
  }
  if (buffers_[rank].size() != buffers_[0].size()) {
    fail(file(rank), fmt::format("has {} groups of parameters, {} has {}; are all files of one "
                                 "save?",
                                 buffers_[rank].size(), file(0).path().filename().string(),
                                 buffers_[0].size()));
  }
}

void ZeroReader::read_shapes() {
  groups_ = parameter_shapes(*rank_.model);
  for (const NamedShapes& group : groups_) {
    for (const auto& [name, shape] : group) result_.shapes[name] = shape;
  }
}

// The locations of the parameters according to each file.
void ZeroReader::read_slices() {
  for (size_t rank = 0; rank < buffers_.size(); ++rank) {
    const PyValue* groups = state_of(rank).find("param_slice_mappings");
    if (groups == nullptr || groups->items().size() != buffers_[rank].size()) {
      fail(file(rank),
           "has no param_slice_mappings for its groups, as other files; are all files "
           "of one save?");
    }
    for (size_t g = 0; g < groups->items().size(); ++g) {
      for (const auto& [name, slice] : groups->items()[g].entries()) {
        const PyValue* start = slice.find("start");
        const PyValue* count = slice.find("numel");
        const int64_t begin = start != nullptr ? start->integer().value_or(-1) : -1;
        const int64_t numel = count != nullptr ? count->integer().value_or(-1) : -1;
        if (!name.text() || begin < 0 || numel < 0 || begin > numel_of(rank, g) ||
            numel > numel_of(rank, g) - begin) {
          fail(file(rank),
               fmt::format("the slice of {} in group {} is {} elements from {} on, but the buffer "
                           "has {}; is the file damaged?",
                           name.text().value_or("?"), g, numel, begin, numel_of(rank, g)));
        }
        if (numel > 0) fragments_[std::string(*name.text())].push_back({rank, g, begin, numel});
      }
    }
  }
}

// The padding after the parameters in a rank's part of a group.
int64_t ZeroReader::padding_of(size_t rank, size_t group) const {
  const PyValue* paddings = state_of(rank).find("group_paddings");
  if (paddings == nullptr || group >= paddings->items().size()) return 0;
  return paddings->items()[group].integer().value_or(0);
}

// Stages 1 and 2 of older versions: a group is its parameters one after another, cut anywhere.
void ZeroReader::cut_groups() {
  if (groups_.size() != buffers_[0].size()) {
    fail(file(0),
         fmt::format("has {} groups of parameters, param_shapes of {} {}", buffers_[0].size(),
                     rank_.model->path().filename().string(), groups_.size()));
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    int64_t total = 0;
    for (size_t rank = 0; rank < buffers_.size(); ++rank) total += numel_of(rank, g);
    int64_t needed = 0;
    for (const auto& [name, shape] : groups_[g]) needed += shape.numel();
    if (total != needed && total != needed + padding_of(buffers_.size() - 1, g)) {
      fail(file(0),
           fmt::format("group {} has {} elements in the files of all ranks, its parameters "
                       "have {}; are all files of one save?",
                       g, total, needed));
    }
    size_t rank = 0;
    int64_t at = 0;
    for (const auto& [name, shape] : groups_[g]) {
      for (int64_t left = shape.numel(); left > 0;) {
        while (at == numel_of(rank, g)) {
          ++rank;
          at = 0;
        }
        const int64_t numel = std::min(left, numel_of(rank, g) - at);
        fragments_[name].push_back({rank, g, at, numel});
        at += numel;
        left -= numel;
      }
    }
  }
}

// Stage 3: each parameter is cut, and a group may be in several buffers.
void ZeroReader::cut_parameters() {
  const auto ranks = static_cast<int64_t>(buffers_.size());
  size_t buffer = 0;
  int64_t at = 0;
  for (const auto& group : groups_) {
    for (const auto& [name, shape] : group) {
      const int64_t part = (shape.numel() + ranks - 1) / ranks;
      while (part > 0 && buffer < buffers_[0].size() && at == numel_of(0, buffer)) {
        ++buffer;
        at = 0;
      }
      for (size_t rank = 0; rank < buffers_.size() && part > 0; ++rank) {
        if (buffer >= buffers_[rank].size() || part > numel_of(rank, buffer) - at) {
          fail(file(rank),
               fmt::format("fp32_flat_groups end before {}, of which it has {} elements; "
                           "is the file damaged?",
                           name, part));
        }
        const int64_t numel = std::min(part, shape.numel() - static_cast<int64_t>(rank) * part);
        if (numel > 0) fragments_[name].push_back({rank, buffer, at, numel});
      }
      at += part;
    }
  }
  for (size_t rank = 0; rank < buffers_.size(); ++rank) {
    int64_t left = -at;
    for (size_t b = buffer; b < buffers_[rank].size(); ++b) left += numel_of(rank, b);
    if (left == 0) continue;
    fail(file(rank), fmt::format("fp32_flat_groups have {} elements more than the parameters in "
                                 "param_shapes of {}; are all files of one save?",
                                 left, rank_.model->path().filename().string()));
  }
}

void ZeroReader::add_tensors(const std::string& name, const std::vector<Fragment>& fragments) {
  const GroupBuffers& first = buffers_[fragments[0].rank][fragments[0].group];
  for (const auto& [kind, buffer] : first) {
    ShardedState tensor;
    tensor.dtype = buffer.tensor->dtype;
    std::vector<std::pair<FlatPart, Fragment>> parts;
    for (const Fragment& fragment : fragments) {
      const GroupBuffers& group = buffers_[fragment.rank][fragment.group];
      const auto part = group.find(kind);
      if (part == group.end() || part->second.tensor->dtype != tensor.dtype) {
        fail(file(fragment.rank),
             fmt::format("has no {} {} of {}, as other files", name_of(tensor.dtype), kind, name));
      }
      parts.emplace_back(part->second, fragment);
      tensor.numel += fragment.numel;
    }
    tensor.read = [parts, dtype = tensor.dtype, numel = tensor.numel] {
      if (parts.size() == 1) {
        return window_of(parts[0].first, parts[0].second.begin, parts[0].second.numel);
      }
      Tensor joined(Shape({numel}), dtype, Stream{});
      auto* to = static_cast<std::byte*>(joined.view().data);
      for (const auto& [part, fragment] : parts) {
        const FileElements elements = window_of(part, fragment.begin, fragment.numel);
        const auto bytes = static_cast<size_t>(fragment.numel * size_of(dtype));
        std::memcpy(to, elements.view.data, bytes);
        to += bytes;
      }
      return FileElements{joined.view(), joined};
    };
    result_.kinds[kind][name] = std::move(tensor);
  }
}

// The count of updates is the state's, as in PyTorch's Adam, or the group's, as in Apex's.
void ZeroReader::read_step() {
  const PyValue base = base_state(state_of(0), divides_parameters_);
  std::optional<double> step;
  for (size_t g = 0; g < buffers_[0].size(); ++g) {
    const PyValue* state = group_state(base, g);
    std::optional<double> own =
        state != nullptr ? number_in(file(0), state->find("step")) : std::nullopt;
    const PyValue* groups = base.find("param_groups");
    if (!own && groups != nullptr && g < groups->items().size()) {
      own = number_in(file(0), groups->items()[g].find("step"));
    }
    if (!own) continue;
    if (step && *step != *own) {
      throw Unsupported(fmt::format(
          "{}: its groups of parameters had {} and {} updates; this program updates all "
          "together",
          file(0).path().string(), *step, *own));
    }
    step = own;
  }
  if (step) result_.scalars["optimizer"]["step"] = static_cast<int64_t>(*step);
}

DeepSpeedState ZeroReader::read() {
  for (size_t rank = 0; rank < buffers_.size(); ++rank) open_buffers(rank);
  read_shapes();
  const PyValue* slices = state_of(0).find("param_slice_mappings");
  if (divides_parameters_) {
    cut_parameters();
  } else if (slices != nullptr && !slices->items().empty()) {
    read_slices();
  } else {
    cut_groups();
  }
  for (const auto& [name, fragments] : fragments_) {
    add_tensors(name, fragments);
    int64_t numel = 0;
    for (const Fragment& fragment : fragments) numel += fragment.numel;
    const auto shape = result_.shapes.find(name);
    if (shape == result_.shapes.end() || shape->second.numel() == numel) continue;
    fail(
        file(fragments.back().rank),
        fmt::format("{} has {} elements in the files of all ranks, but the shape {}; are all files "
                    "of one save?",
                    name, numel, shape->second.str()));
  }
  read_step();
  if (ArgMap scale = loss_scale_of(state_of(0)); !scale.empty()) {
    result_.scalars["grad_scaler"] = std::move(scale);
  }
  return std::move(result_);
}

}  // namespace

DeepSpeedState read_zero_state(const DeepSpeedRank& rank) { return ZeroReader(rank).read(); }

}  // namespace megatron
