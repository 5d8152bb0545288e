#include "annex/deepspeed/checkpoint/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "annex/deepspeed/checkpoint/model_states.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRank = 99999;

// The parts of the name of a rank's file.
struct RankFileName {
  bool is_optimizer = false;
  int data = 0;
  int model = 0;
};

std::optional<RankFileName> parsed(std::string name) {
  for (const char* const kind : {"_model_states.pt", "_optim_states.pt"}) {
    if (!name.ends_with(kind)) continue;
    RankFileName found;
    found.is_optimizer = kind == std::string_view("_optim_states.pt");
    name.resize(name.size() - std::string_view(kind).size());
    if (name.starts_with("bf16_")) name.erase(0, std::string_view("bf16_").size());
    int end = 0;
    const bool is_part = std::sscanf(name.c_str(), "zero_pp_rank_%d_mp_rank_%d%n", &found.data,
                                     &found.model, &end) == 2;
    if (!is_part && std::sscanf(name.c_str(), "mp_rank_%d%n", &found.model, &end) != 1) return {};
    if (end != static_cast<int>(name.size()) || found.data < 0 || found.model < 0 ||
        found.data > kMaxRank || found.model > kMaxRank) {
      return {};
    }
    return found;
  }
  return {};
}

using PathsByRank = std::map<int, std::map<int, fs::path>>;  // model-parallel, data-parallel

struct RankPaths {
  PathsByRank model;
  PathsByRank optimizer;
};

RankPaths rank_paths(const fs::path& directory) {
  RankPaths paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.find("_expert_") != std::string::npos || name.starts_with("expp_rank_")) {
      throw Unsupported(
          fmt::format("{}: is of a model with experts, which are not read", entry.path().string()));
    }
    const std::optional<RankFileName> rank = parsed(name);
    if (!rank) continue;
    fs::path& path = (rank->is_optimizer ? paths.optimizer : paths.model)[rank->model][rank->data];
    if (!path.empty()) {
      throw FormatError(fmt::format(
          "{}: is of the same rank as {}; delete the one that is left from another save",
          std::max(path, entry.path()).string(), std::min(path, entry.path()).filename().string()));
    }
    path = entry.path();
  }
  return paths;
}

// The number under a key, or the first number of the list there; 0 if there is none.
int64_t count_in(PyValue dict, std::string_view key) {
  const PyValue* value = dict.find(key);
  if (value == nullptr) return 0;
  if (!value->items().empty()) return value->items()[0].integer().value_or(0);
  return value->integer().value_or(0);
}

// Throws unless there are the files of ranks 0 to count - 1, and of no others. `name_of` makes the
// name of a file from its rank.
template <class Files, class Name>
void expect_ranks(const fs::path& directory, const Files& files, int64_t count, const char* setting,
                  const fs::path& witness, const Name& name_of) {
  const auto says = [&] {
    return fmt::format("by {} of {} there are {}", setting, witness.filename().string(), count);
  };
  for (int64_t rank = 0; rank < count; ++rank) {
    if (files.contains(static_cast<int>(rank))) continue;
    throw FormatError(fmt::format("{}: is missing: {}; copy the files of all ranks here",
                                  (directory / name_of(rank)).string(), says()));
  }
  for (const auto& [rank, file] : files) {
    if (rank < count) continue;
    throw FormatError(fmt::format("{}: is too many: {}; delete it if another save left it",
                                  (directory / name_of(rank)).string(), says()));
  }
}

std::string model_name(int64_t rank) { return fmt::format("mp_rank_{:02}_model_states.pt", rank); }

void open_optimizer(const fs::path& directory, const PathsByRank& paths,
                    std::vector<DeepSpeedRank>& ranks) {
  const auto part_name = [&](int64_t data, int64_t model) {
    const std::string first = paths.begin()->second.begin()->second.filename().string();
    return fmt::format("{}zero_pp_rank_{}_mp_rank_{:02}_optim_states.pt",
                       first.starts_with("bf16_") ? "bf16_" : "", data, model);
  };
  expect_ranks(directory, paths, static_cast<int64_t>(ranks.size()), "mp_world_size",
               ranks[0].model->path(), [&](int64_t model) { return part_name(0, model); });
  for (const auto& [model, files] : paths) {
    std::map<int, std::shared_ptr<TorchFile>> opened;
    for (const auto& [data, path] : files) opened[data] = std::make_shared<TorchFile>(path);
    const TorchFile& witness = *opened.begin()->second;
    const PyValue* state = witness.root().find("optimizer_state_dict");
    if (state == nullptr) {
      throw FormatError(
          fmt::format("{}: has no optimizer_state_dict; was it saved by DeepSpeed's ZeRO?",
                      witness.path().string()));
    }
    expect_ranks(directory, opened, std::max<int64_t>(count_in(*state, "partition_count"), 1),
                 "partition_count", witness.path(),
                 [&, m = model](int64_t data) { return part_name(data, m); });
    for (auto& [data, file] : opened) {
      ranks[static_cast<size_t>(model)].optimizer.push_back(std::move(file));
    }
  }
}

// True if the optimizer's files contain the weights of the module.
bool is_divided(const TorchFile& model) {
  return std::ranges::any_of(module_parameters(model), [](const auto& parameter) {
    return parameter.second->shape.numel() == 0;
  });
}

}  // namespace

fs::path first_model_states(const fs::path& directory) {
  for (const char* name :
       {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_model_states.pt"}) {
    if (fs::exists(directory / name)) return directory / name;
  }
  return {};
}

std::vector<DeepSpeedRank> open_deepspeed_ranks(const fs::path& directory, Parts parts) {
  const fs::path first = first_model_states(directory);
  if (first.empty()) {
    throw FormatError(fmt::format("{}: is missing; it has the arguments of the run",
                                  (directory / model_name(0)).string()));
  }
  RankPaths paths = rank_paths(directory);
  std::vector<DeepSpeedRank> ranks(1);
  ranks[0].model = std::make_shared<TorchFile>(first);
  const PyValue root = ranks[0].model->root();
  const PyValue* module = root.find("module");
  const bool has_weights = module != nullptr && module->is_dict();
  if (parts == Parts::kWeights && !is_divided(*ranks[0].model)) paths.optimizer.clear();
  if (!has_weights && paths.optimizer.empty()) return ranks;
  const int64_t count = std::max<int64_t>(count_in(root, "mp_world_size"), 1);
  expect_ranks(directory, paths.model, count, "mp_world_size", first, model_name);
  for (int64_t rank = 1; rank < count; ++rank) {
    const fs::path& path = paths.model.at(static_cast<int>(rank)).begin()->second;
    ranks.push_back({std::make_shared<TorchFile>(path), {}});
  }
  if (!paths.optimizer.empty()) open_optimizer(directory, paths.optimizer, ranks);
  return ranks;
}

DeepSpeedLayers open_deepspeed_layers(const fs::path& directory) {
  DeepSpeedLayers layers;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    int layer = 0;
    int rank = 0;
    int end = 0;
    if (std::sscanf(name.c_str(), "layer_%d-model_%d-model_states.pt%n", &layer, &rank, &end) !=
            2 ||
        end != static_cast<int>(name.size()) || rank < 0 || rank > kMaxRank) {
      continue;
    }
    auto& files = layers[layer];
    files.resize(std::max(files.size(), static_cast<size_t>(rank) + 1));
    files[static_cast<size_t>(rank)] = std::make_shared<TorchFile>(entry.path());
  }
  const size_t ranks = layers.empty() ? 0 : layers.begin()->second.size();
  for (const auto& [layer, files] : layers) {
    bool is_complete = files.size() == ranks;
    for (const auto& file : files) is_complete &= file != nullptr;
    if (!is_complete) {
      throw FormatError(fmt::format("{}: layer {} does not have the files of {} ranks, as others",
                                    directory.string(), layer, ranks));
    }
  }
  return layers;
}

}  // namespace megatron
