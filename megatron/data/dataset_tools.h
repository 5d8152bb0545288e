#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/indexed_dataset.h"

namespace megatron {

// Prefixes of the datasets whose files lie in a directory, by name. Other files are passed over.
// Throws ConfigError if it is no directory, or holds no dataset, or only one of the two files of
// one.
std::vector<std::filesystem::path> datasets_in(const std::filesystem::path& directory);

struct DatasetCounts {
  int64_t documents = 0;
  int64_t sequences = 0;
  int64_t tokens = 0;
};

// Writes the documents of all `inputs` one after another. Throws ConfigError if the output is one
// of them or its directory is missing, DtypeError if the element types differ.
DatasetCounts merge_datasets(std::span<const std::filesystem::path> inputs,
                             const std::filesystem::path& output_prefix,
                             const IndexedDataset::Options& options);

// Element type, counts and lengths of a dataset, one "name: value" a line.
std::string summary_of(const IndexedDataset& data);

// The first `max_tokens` ids of each sequence of a document, one sequence a line. Throws Error if
// there is no such document.
std::string document_text(const IndexedDataset& data, int64_t document, int64_t max_tokens);

}  // namespace megatron
