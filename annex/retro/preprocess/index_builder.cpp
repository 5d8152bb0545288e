#include "annex/retro/preprocess/index_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "annex/retro/data/chunk_database.h"
#include "annex/retro/data/hdf5_file.h"
#include "annex/retro/preprocess/block_work.h"
#include "annex/retro/preprocess/chunk_text.h"
#include "annex/retro/preprocess/neighbor_index.h"
#include "annex/retro/preprocess/parallel_work.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/run/collectively.h"

namespace megatron::retro {
namespace {

constexpr const char* kData = "data";

std::filesystem::path index_directory(const RetroConfig& config) {
  const char* const type =
      config.retro_index_type == IndexType::kBase ? "faiss-base" : "faiss-par-add";
  return std::filesystem::path(config.retro_workdir) / "index" / type / config.retro_index_str;
}

std::filesystem::path codes_directory(const RetroConfig& config) {
  return index_directory(config) / "add_codes";
}

std::filesystem::path embeddings_directory(const RetroConfig& config) {
  return std::filesystem::path(config.retro_workdir) / "index" / "train_emb";
}

std::filesystem::path joined_embeddings_file(const RetroConfig& config) {
  return embeddings_directory(config) /
         fmt::format("train_{:.3f}.bin", config.retro_index_train_load_fraction);
}

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

int64_t head_of(int64_t rows, double fraction) {
  return static_cast<int64_t>(fraction * static_cast<double>(rows));
}

ChunkDatabase open_database(const RetroConfig& config, ChunkPart part, const Tokenizer& gpt) {
  return {config.retro_workdir, part, config.retro_gpt_chunk_length, gpt.eod()};
}

std::vector<float> embedded(const ChunkDatabase& database, const Block& block, const Tokenizer& gpt,
                            const Embedder& embedder) {
  std::vector<std::string> texts(static_cast<size_t>(block.size()));
  for_each_number(block.size(), [&](int64_t i) {
    std::vector<int64_t> tokens(static_cast<size_t>(database.chunk_length()));
    database.read_tokens(block.begin + i, tokens);
    texts[static_cast<size_t>(i)] = text_of_chunk(tokens, gpt);
  });
  return embedder.embed(texts);
}

template <class T>
void write_rows(const Block& block, const std::vector<T>& values) {
  Hdf5Writer file(block.path);
  file.add<T>(kData, values, {block.size(), std::ssize(values) / block.size()});
  file.commit();
}

void embed_sampled(const RetroConfig& config, const Tokenizer& gpt, const Embedder& embedder,
                   const comm::Group& world) {
  const ChunkDatabase database = open_database(config, ChunkPart::kSampled, gpt);
  const int64_t width = embedder.dimension();
  make_missing_blocks({.what = "embedding the chunks that train the index",
                       .count = database.num_chunks(),
                       .block_size = config.retro_block_size,
                       .directory = embeddings_directory(config) / "blocks",
                       .is_valid =
                           [&](const Hdf5File& file, const Block& block) {
                             return file.shape(kData) == std::vector<int64_t>{block.size(), width};
                           },
                       .make =
                           [&](const Block& block) {
                             write_rows(block, embedded(database, block, gpt, embedder));
                           }},
                      world);
}

// Writes the first rows of each block in one piece.
void join_embeddings(const RetroConfig& config) {
  FileWriter joined(joined_embeddings_file(config));
  for (const Block& block : find_blocks(embeddings_directory(config) / "blocks")) {
    const auto rows =
        Hdf5File(block.path)
            .read_rows<float>(kData, 0,
                              head_of(block.size(), config.retro_index_train_load_fraction));
    joined.write(std::as_bytes(std::span(rows)));
  }
  joined.commit();
}

void train_on_embeddings(const RetroConfig& config) {
  const MappedFile file(joined_embeddings_file(config));
  const std::span<const float> vectors(reinterpret_cast<const float*>(file.bytes().data()),
                                       file.bytes().size() / sizeof(float));
  print_line(fmt::format("> training the index {} with {} chunks", config.retro_index_str,
                         std::ssize(vectors) / config.retro_index_nfeats));
  std::filesystem::create_directories(index_directory(config));
  NeighborIndex::trained(config.retro_index_str, config.retro_index_nfeats, vectors)
      .write(empty_index_file(config));
}

NeighborIndex read_empty_index(const RetroConfig& config) {
  if (!is_file(empty_index_file(config))) {
    throw ConfigError(fmt::format("{} is missing; run --retro-tasks index-train first",
                                  empty_index_file(config).string()));
  }
  return NeighborIndex(empty_index_file(config));
}

void compute_codes(const RetroConfig& config, const ChunkDatabase& database,
                   const NeighborIndex& index, const Tokenizer& gpt, const Embedder& embedder,
                   const comm::Group& world) {
  make_missing_blocks(
      {.what = "computing codes of the chunks",
       .count = database.num_chunks(),
       .block_size = config.retro_block_size,
       .directory = codes_directory(config),
       .is_valid =
           [&](const Hdf5File& file, const Block& block) {
             return file.shape(kData) == std::vector<int64_t>{block.size(), index.code_size()};
           },
       .make =
           [&](const Block& block) {
             write_rows(block, index.codes_of(embedded(database, block, gpt, embedder)));
           }},
      world);
}

void add_codes(const RetroConfig& config, NeighborIndex& index) {
  for (const Block& block : find_blocks(codes_directory(config))) {
    const int64_t count = head_of(block.size(), config.retro_index_add_load_fraction);
    index.add_codes(Hdf5File(block.path).read_rows<uint8_t>(kData, 0, count), block.begin);
  }
}

void add_vectors(const RetroConfig& config, const ChunkDatabase& database, NeighborIndex& index,
                 const Tokenizer& gpt, const Embedder& embedder) {
  for (Block block : blocks_of(database.num_chunks(), config.retro_block_size, "")) {
    print_line(fmt::format("> adding chunks {} to {} of {}", block.begin, block.end,
                           database.num_chunks()));
    block.end = block.begin + head_of(block.size(), config.retro_index_add_load_fraction);
    if (block.size() > 0) index.add(embedded(database, block, gpt, embedder), block.begin);
  }
}

}  // namespace

std::filesystem::path empty_index_file(const RetroConfig& config) {
  return index_directory(config) /
         fmt::format("empty_{:.3f}.faissindex", config.retro_index_train_load_fraction);
}

std::filesystem::path added_index_file(const RetroConfig& config) {
  return index_directory(config) / fmt::format("added_{:.3f}_{:.3f}.faissindex",
                                               config.retro_index_train_load_fraction,
                                               config.retro_index_add_load_fraction);
}

void train_index(const RetroConfig& config, const Tokenizer& gpt, const Embedder& embedder,
                 const comm::Group& world) {
  const bool is_trained = is_file(empty_index_file(config));
  comm::barrier(world);  // every rank has looked before rank 0 writes
  if (!is_trained) {
    embed_sampled(config, gpt, embedder, world);
    const comm::Working working(world, "training the index");
    on_first_rank(world, [&] {
      join_embeddings(config);
      train_on_embeddings(config);
    });
  }
  if (!config.retro_index_delete_training_embeddings) return;
  on_first_rank(world, [&] { std::filesystem::remove_all(embeddings_directory(config)); });
}

void add_to_index(const RetroConfig& config, const Tokenizer& gpt, const Embedder& embedder,
                  const comm::Group& world) {
  const bool is_added = is_file(added_index_file(config));
  comm::barrier(world);
  if (!is_added) {
    const ChunkDatabase database = open_database(config, ChunkPart::kTrain, gpt);
    NeighborIndex index = collectively([&] { return read_empty_index(config); });
    const bool by_codes = config.retro_index_type == IndexType::kParallelAdd && index.has_codes();
    if (by_codes) compute_codes(config, database, index, gpt, embedder, world);
    const comm::Working working(world, "adding chunks to the index");
    on_first_rank(world, [&] {
      if (by_codes) {
        add_codes(config, index);
      } else {
        add_vectors(config, database, index, gpt, embedder);
      }
      index.write(added_index_file(config));
      print_line(fmt::format("> the index has {} chunks", index.size()));
    });
  }
  if (!config.retro_index_delete_added_codes) return;
  on_first_rank(world, [&] { std::filesystem::remove_all(codes_directory(config)); });
}

}  // namespace megatron::retro
