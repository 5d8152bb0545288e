#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "annex/retro/data/chunk_database.h"
#include "annex/retro/data/retro_samples.h"
#include "annex/retro/preprocess/config.h"
#include "annex/retro/preprocess/embedder.h"
#include "megatron/comm/group.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::retro {

// The first `count` of the found chunks that belong to none of the documents, in their order; -1
// fills the rest. A found number below 0 is none.
std::vector<int64_t> kept_neighbors(std::span<const int64_t> found,
                                    std::span<const ChunkDatabase::Document> documents,
                                    const ChunkDatabase& database, int64_t count);

// The task query-pretraining-neighbors: for each chunk of each sample of all splits, writes the
// nearest chunks of the index that are of other documents than the sample: "neighbors" int64 [n,
// save] in query/<split>_<digest>/<block>.hdf5. Chunk c of sample s has the number s * (chunks of a
// sample) + c. Every rank calls it.
void query_neighbors(const RetroConfig& config, const RetroSplits& samples, const Tokenizer& gpt,
                     const Embedder& embedder, const comm::Group& world);

}  // namespace megatron::retro
