#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "annex/retro/data/chunk_database.h"
#include "annex/retro/data/neighbor_table.h"
#include "megatron/data/config.h"
#include "megatron/data/sample_dataset.h"

namespace megatron {

// Samples of a Retro: the s + 1 tokens of a GPT's sample, then the tokens of the neighbours of its
// l chunks, [l, k, r]. A neighbour is a retrieved chunk and the chunks that follow it.
class RetroDataset final : public SampleDataset {
 public:
  struct Options {
    int64_t num_neighbors = 2;         // k, at most those of the table
    int64_t num_retrieved_chunks = 2;  // of r tokens together
    MissingNeighbor missing = MissingNeighbor::kLastChunk;
    int64_t eod = 0;
    // True: throws ConfigError unless the table belongs to these samples. False: samples beyond the
    // table's have the neighbours of earlier ones.
    bool verify_neighbor_count = true;
  };
  // Also throws ConfigError if the table has fewer neighbours than k.
  RetroDataset(std::shared_ptr<const SampleDataset> texts,
               std::shared_ptr<const ChunkDatabase> chunks,
               std::shared_ptr<const NeighborTable> neighbors, const Options& options);

  int64_t num_samples() const override { return texts_->num_samples(); }
  int64_t sample_size() const override;
  void read(int64_t sample, std::span<int64_t> out) const override;

 private:
  void read_neighbor(int64_t chunk, std::span<int64_t> out) const;

  std::shared_ptr<const SampleDataset> texts_;
  std::shared_ptr<const ChunkDatabase> chunks_;
  std::shared_ptr<const NeighborTable> neighbors_;
  Options options_;
  int64_t num_chunks_;  // l
};

}  // namespace megatron
