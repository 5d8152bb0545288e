#include "annex/retro/data/retro_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

RetroDataset::RetroDataset(std::shared_ptr<const SampleDataset> texts,
                           std::shared_ptr<const ChunkDatabase> chunks,
                           std::shared_ptr<const NeighborTable> neighbors, const Options& options)
    : texts_(std::move(texts)),
      chunks_(std::move(chunks)),
      neighbors_(std::move(neighbors)),
      options_(options),
      num_chunks_((texts_->sample_size() - 1 + chunks_->chunk_length() - 1) /
                  chunks_->chunk_length()) {
  if (options.num_neighbors > neighbors_->num_neighbors()) {
    throw ConfigError(
        fmt::format("--retro-num-neighbors {} must not exceed the {} that the preprocessing saved "
                    "(--retro-query-num-neighbors-save)",
                    options.num_neighbors, neighbors_->num_neighbors()));
  }
  if (options.verify_neighbor_count) {
    neighbors_->expect_chunks(texts_->num_samples() * num_chunks_);
  } else if (neighbors_->num_chunks() < num_chunks_) {
    throw ConfigError(
        fmt::format("the neighbours of {} chunks are not enough for one sample, which "
                    "has {}; run the preprocessing again",
                    neighbors_->num_chunks(), num_chunks_));
  }
}

int64_t RetroDataset::sample_size() const {
  return texts_->sample_size() + num_chunks_ * options_.num_neighbors *
                                     options_.num_retrieved_chunks * chunks_->chunk_length();
}

void RetroDataset::read(int64_t sample, std::span<int64_t> out) const {
  const auto text = static_cast<size_t>(texts_->sample_size());
  texts_->read(sample, out.first(text));
  std::span<int64_t> rest = out.subspan(text);
  const auto length = static_cast<size_t>(options_.num_retrieved_chunks * chunks_->chunk_length());
  const int64_t first = sample % (neighbors_->num_chunks() / num_chunks_) * num_chunks_;
  for (int64_t chunk = first; chunk < first + num_chunks_; ++chunk) {
    const auto found = neighbors_->neighbors_of(chunk);
    for (const int64_t id : found.first(static_cast<size_t>(options_.num_neighbors))) {
      read_neighbor(id, rest.first(length));
      rest = rest.subspan(length);
    }
  }
}

void RetroDataset::read_neighbor(int64_t chunk, std::span<int64_t> out) const {
  if (chunk < 0 && options_.missing == MissingNeighbor::kEndOfDocument) {
    std::ranges::fill(out, options_.eod);
    return;
  }
  const auto length = static_cast<size_t>(chunks_->chunk_length());
  for (int64_t i = 0; i < options_.num_retrieved_chunks; ++i) {
    chunks_->read_tokens(chunk + i, out.subspan(static_cast<size_t>(i) * length, length));
  }
}

}  // namespace megatron
