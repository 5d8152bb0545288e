#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/indexed_dataset.h"

namespace megatron {

// Prefixes of the datasets in a directory, sorted by name. Skips other files. Throws ConfigError if
// it is not a directory, holds no dataset, or holds only one of a dataset's two files.
std::vector<std::filesystem::path> datasets_in(const std::filesystem::path& directory);

struct DatasetCounts {
  int64_t documents = 0;
  int64_t sequences = 0;
  int64_t tokens = 0;
};

// Writes the documents of all `inputs` in order. Throws ConfigError if the output is one
// of them or its directory is missing, DtypeError if the element types differ.
DatasetCounts merge_datasets(std::span<const std::filesystem::path> inputs,
                             const std::filesystem::path& output_prefix,
                             const IndexedDataset::Options& options);

// Element type, counts and lengths of a dataset, one "name: value" per line.
std::string summary_of(const IndexedDataset& data);

// The first `max_tokens` ids of each sequence of a document, one sequence per line. Throws Error if
// there is no such document.
std::string document_text(const IndexedDataset& data, int64_t document, int64_t max_tokens);

}  // namespace megatron
