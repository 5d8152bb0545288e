#include "megatron/interchange/megatron/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/megatron/python_args.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> number_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void flatten(PyValue value, const std::string& prefix,
             std::vector<std::pair<std::string, PyValue>>& leaves) {
  for (const auto& [key, entry] : value.entries()) {
    const std::string name = prefix + std::string(key.text().value_or("?"));
    if (entry.is_dict()) {
      flatten(entry, name + ".", leaves);
    } else {
      leaves.emplace_back(name, entry);
    }
  }
}

constexpr std::string_view kPrefix = "mp_rank_";

// Is the second number of a rank's folder that of a pipeline rank? Else it is of an expert rank.
bool has_pipeline(PyValue root) {
  const PyValue* args = root.find("args");
  if (args == nullptr) return true;
  const ArgMap settings = megatron_args(*args);
  return value_or<int64_t>(settings, "pipeline_model_parallel_size", 1) > 1 ||
         value_or<int64_t>(settings, "expert_model_parallel_size", 1) <= 1;
}

}  // namespace

std::optional<fs::path> rank_file(const fs::path& folder) {
  // The names of releases before 2023-06 and of the transformers script.
  for (const char* name : {"model_optim_rng.pt", "model_rng.pt"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return std::nullopt;
}

bool is_rank_folder(const fs::path& folder) {
  return folder.filename().string().starts_with(kPrefix);
}

std::vector<RankFiles> open_rank_files(const fs::path& directory, Parts parts) {
  std::vector<RankFiles> ranks;
  if (fs::is_regular_file(directory)) {
    ranks.emplace_back().file = std::make_shared<TorchFile>(directory);
    return ranks;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!is_rank_folder(entry.path())) continue;
    std::vector<int64_t> numbers;
    for (size_t begin = kPrefix.size(); begin <= name.size();) {
      const size_t end = std::min(name.find('_', begin), name.size());
      if (const auto number = number_of(std::string_view(name).substr(begin, end - begin))) {
        numbers.push_back(*number);
      }
      begin = end + 1;
    }
    RankFiles rank;
    const std::optional<fs::path> file = rank_file(entry.path());
    if (!file) continue;  // an old optimizer's shard: mp_rank_XX_XXX_XXX/optim.pt
    rank.file = std::make_shared<TorchFile>(*file);
    if (numbers.empty() || numbers.size() > 3) {
      throw Unsupported(fmt::format("{}: is of no rank of tensor, pipeline and expert parallelism",
                                    entry.path().string()));
    }
    rank.tensor = numbers[0];
    if (numbers.size() == 3) {
      rank.pipeline = numbers[1];
      rank.expert = numbers[2];
    } else if (numbers.size() == 2) {
      // One of the two is not divided, and has no number.
      (has_pipeline(rank.root()) ? rank.pipeline : rank.expert) = numbers[1];
    }
    if (parts == Parts::kAll && fs::exists(entry.path() / "distrib_optim.pt")) {
      rank.optimizer_file = std::make_shared<TorchFile>(entry.path() / "distrib_optim.pt");
    }
    ranks.push_back(std::move(rank));
  }
  if (ranks.empty()) {
    throw FormatError(fmt::format("{}: has no mp_rank_XX/model_optim_rng.pt", directory.string()));
  }
  std::ranges::sort(ranks, {}, [](const RankFiles& rank) {
    return std::tuple(rank.expert, rank.pipeline, rank.tensor);
  });
  const int64_t tensor_ranks = ranks.back().tensor + 1;
  const int64_t pipeline_ranks = ranks.back().pipeline + 1;
  const int64_t expert_ranks = ranks.back().expert + 1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t wanted = tensor_ranks * pipeline_ranks * expert_ranks;
    if (ranks[i].tensor != at % tensor_ranks ||
        ranks[i].pipeline != at / tensor_ranks % pipeline_ranks ||
        ranks[i].expert != at / tensor_ranks / pipeline_ranks || std::ssize(ranks) != wanted) {
      const std::string experts =
          expert_ranks > 1 ? fmt::format(" and {} expert parallel", expert_ranks) : "";
      throw FormatError(fmt::format(
          "{}: has the files of {} ranks, but {} tensor parallel and {} pipeline parallel{} ranks "
          "make {}; a folder is missing",
          directory.string(), ranks.size(), tensor_ranks, pipeline_ranks, experts, wanted));
    }
  }
  return ranks;
}

std::vector<std::pair<std::string, PyValue>> flattened(PyValue value) {
  std::vector<std::pair<std::string, PyValue>> leaves;
  flatten(value, "", leaves);
  return leaves;
}

std::optional<double> number_in(const TorchFile& file, const PyValue* value) {
  if (value == nullptr) return std::nullopt;
  if (const PyTensor* tensor = value->tensor()) {
    if (tensor->shape.numel() != 1) return std::nullopt;
    return copy_of(file.elements(*tensor).view).reshape({1}).item();
  }
  return value->number();
}

bool is_gated(const ArgMap& args) {
  return value_or(args, "swiglu", false) ||
         !value_or<std::string>(args, "glu_activation", "").empty();
}

}  // namespace megatron
