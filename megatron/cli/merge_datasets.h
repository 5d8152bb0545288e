#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron merge-datasets`: writes the documents of several datasets as one dataset.
int merge_datasets(std::span<const std::string> words);

}  // namespace megatron::cli
