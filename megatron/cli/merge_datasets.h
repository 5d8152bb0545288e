#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// megatron merge-datasets: the documents of several datasets -> one dataset.
int merge_datasets(std::span<const std::string> words);

}  // namespace megatron::cli
