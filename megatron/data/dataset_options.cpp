#include "megatron/data/dataset_options.h"

#include <nlohmann/json.hpp>

#include "megatron/data/indexed_dataset.h"
#include "megatron/data/python_json.h"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

Json matrix_json(const SplitMatrix& matrix) {
  Json rows = Json::array();
  for (size_t k = 0; k < matrix.size(); ++k) {
    if (!matrix[k]) {
      rows.push_back(nullptr);
      continue;
    }
    // Compat: Megatron starts from the integer 0, which prints as 0, not 0.0.
    const Json lower = k == 0 ? Json(0) : Json(matrix[k]->lower);
    rows.push_back(Json::array({lower, matrix[k]->upper}));
  }
  return rows;
}

Json tokenizer_json(const TokenizerDescription& tokenizer) {
  Json paths = Json::array();
  for (const auto& path : tokenizer.tokenizer_path) {
    paths.push_back(path ? Json(*path) : Json(nullptr));
  }
  Json value = {{"class", tokenizer.class_name}, {"tokenizer_path", paths}};
  for (const auto& [name, text] : tokenizer.options) value[name] = text;
  return value;
}

}  // namespace

Json dataset_description(std::string_view class_name, const std::string& dataset_path, Split split,
                         std::optional<int64_t> num_samples, const DatasetOptions& options) {
  return {
      {"class", class_name},
      {"dataset_path", dataset_path},
      {"num_samples", num_samples ? Json(*num_samples) : Json(nullptr)},
      {"index_split", split_name(split)},
      {"random_seed", options.seed},
      {"sequence_length", options.seq_length},
      {"split", options.split ? Json(*options.split) : Json(nullptr)},
      {"split_matrix", options.split_matrix ? matrix_json(*options.split_matrix) : Json(nullptr)},
      {"tokenizer", tokenizer_json(options.tokenizer)}};
}

IndexCache index_cache_of(const Json& description, const std::filesystem::path& dataset_path,
                          Split split, const DatasetOptions& options) {
  const auto class_name = description.at("class").get<std::string>();
  const std::filesystem::path directory = options.cache_path.empty()
                                              ? dataset_path / "cache" / (class_name + "_indices")
                                              : options.cache_path;
  return IndexCache(directory, class_name, python_json(description), split, options.cache_naming,
                    index_file(dataset_path));
}

}  // namespace megatron
