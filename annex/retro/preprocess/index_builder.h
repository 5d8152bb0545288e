#pragma once

#include <filesystem>

#include "annex/retro/preprocess/config.h"
#include "annex/retro/preprocess/embedder.h"
#include "megatron/comm/group.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::retro {

// Files of the index in the working directory; F and A are the load fractions of training and
// adding, with three decimals:
//
//   index/train_emb/blocks/<block>.hdf5      "data" float32 [n, dimension]: the sampled chunks
//   index/train_emb/train_<F>.bin            the same in one piece, without a header
//   index/<type>/<str>/empty_<F>.faissindex  trained, without vectors
//   index/<type>/<str>/add_codes/<block>.hdf5    "data" uint8 [n, code size]: all train chunks
//   index/<type>/<str>/added_<F>_<A>.faissindex  with all train chunks; ids are numbers of chunks
std::filesystem::path empty_index_file(const RetroConfig& config);
std::filesystem::path added_index_file(const RetroConfig& config);

// The task index-train: embeds the sampled chunks on all ranks and trains the index on rank 0, in
// host memory and on its CPU. Nothing to do if the trained index is there.
void train_index(const RetroConfig& config, const Tokenizer& gpt, const Embedder& embedder,
                 const comm::Group& world);

// The task index-add: adds the train chunks. With IndexType::kParallelAdd all ranks compute codes,
// which rank 0 adds; the result is the same. Nothing to do if the index is there.
void add_to_index(const RetroConfig& config, const Tokenizer& gpt, const Embedder& embedder,
                  const comm::Group& world);

}  // namespace megatron::retro
