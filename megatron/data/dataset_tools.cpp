#include "megatron/data/dataset_tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "megatron/core/error.h"

namespace megatron {

std::vector<std::filesystem::path> datasets_in(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw ConfigError(
        fmt::format("{}: is not a directory; give the directory that holds the .bin "
                    "and .idx files to merge",
                    directory.string()));
  }
  std::set<std::filesystem::path> prefixes;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::filesystem::path extension = entry.path().extension();
    if (!entry.is_regular_file() || (extension != ".bin" && extension != ".idx")) continue;
    prefixes.insert(std::filesystem::path(entry.path()).replace_extension());
  }
  for (const auto& prefix : prefixes) {
    if (dataset_exists(prefix)) continue;
    throw ConfigError(
        fmt::format("{}: only one of .bin and .idx exists; complete the dataset or "
                    "move the file away",
                    prefix.string()));
  }
  if (prefixes.empty()) {
    throw ConfigError(fmt::format("{}: holds no .bin and .idx files", directory.string()));
  }
  return {prefixes.begin(), prefixes.end()};
}

DatasetCounts merge_datasets(std::span<const std::filesystem::path> inputs,
                             const std::filesystem::path& output_prefix,
                             const IndexedDataset::Options& options) {
  invariant(!inputs.empty(), "a merge has inputs");
  const std::filesystem::path directory = std::filesystem::absolute(output_prefix).parent_path();
  if (!std::filesystem::is_directory(directory)) {
    throw ConfigError(fmt::format("{}: the directory of the output does not exist; create it",
                                  directory.string()));
  }
  const auto canonical = [](const std::filesystem::path& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  };
  for (const auto& input : inputs) {
    if (canonical(input) == canonical(output_prefix)) {
      throw ConfigError(
          fmt::format("{}: is both an input and the output of the merge; choose "
                      "another output prefix",
                      input.string()));
    }
  }
  const IndexedDataset first(inputs.front(), options);
  IndexedDatasetBuilder builder(
      output_prefix,
      {.dtype = first.dtype(), .multimodal = options.multimodal, .format = first.format()});
  for (const auto& input : inputs) builder.add_dataset(IndexedDataset(input, options));
  builder.finalize();
  return {builder.num_documents(), builder.num_sequences(), builder.num_tokens()};
}

std::string summary_of(const IndexedDataset& data) {
  int64_t shortest = data.num_sequences() == 0 ? 0 : std::numeric_limits<int64_t>::max();
  int64_t longest = 0;
  for (int64_t i = 0; i < data.num_sequences(); ++i) {
    shortest = std::min(shortest, data.length(i));
    longest = std::max(longest, data.length(i));
  }
  int64_t empty = 0;
  for (int64_t k = 0; k < data.num_documents(); ++k) {
    if (data.document_start(k) == data.document_start(k + 1)) ++empty;
  }
  const double mean = data.num_sequences() == 0 ? 0.0
                                                : static_cast<double>(data.num_tokens()) /
                                                      static_cast<double>(data.num_sequences());
  return fmt::format(
      "format: {}\n"
      "element type: {}\n"
      "documents: {} ({} empty)\n"
      "sequences: {}\n"
      "tokens: {}\n"
      "tokens per sequence: {} to {}, mean {:.1f}\n",
      data.format() == IndexFormat::kMmididx ? "MMIDIDX (mmap)" : "TNTIDX (cached, lazy)",
      token_dtype_name(data.dtype()), data.num_documents(), empty, data.num_sequences(),
      data.num_tokens(), shortest, longest, mean);
}

std::string document_text(const IndexedDataset& data, int64_t document, int64_t max_tokens) {
  if (document < 0 || document >= data.num_documents()) {
    throw Error(fmt::format("{}: document {} is outside [0, {})", data.prefix().string(), document,
                            data.num_documents()));
  }
  std::string text;
  for (int64_t i = data.document_start(document); i < data.document_start(document + 1); ++i) {
    const TokenView tokens = data.sequence(i);
    text += fmt::format("sequence {}, {} tokens:", i, tokens.size());
    for (int64_t k = 0; k < std::min(tokens.size(), max_tokens); ++k) {
      text += fmt::format(" {}", tokens[k]);
    }
    text += tokens.size() > max_tokens ? " ...\n" : "\n";
  }
  return text;
}

}  // namespace megatron
