#pragma once

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include "megatron/data/indexed_dataset.h"

namespace megatron {

// Writes a dataset of one-sequence documents of these lengths; the tokens count up from
// first_token.
inline void write_counting_dataset(const std::filesystem::path& prefix,
                                   const std::vector<int32_t>& lengths, int32_t first_token = 1) {
  IndexedDatasetBuilder builder(prefix, {.dtype = TokenDtype::kInt32});
  for (const int32_t length : lengths) {
    std::vector<int32_t> tokens(static_cast<size_t>(length));
    std::iota(tokens.begin(), tokens.end(), first_token);
    first_token += length;
    builder.add_document(tokens, std::vector<int32_t>{length});
  }
  builder.finalize();
}

}  // namespace megatron
