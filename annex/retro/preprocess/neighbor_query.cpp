#include "annex/retro/preprocess/neighbor_query.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>

#include "annex/retro/data/hdf5_file.h"
#include "annex/retro/preprocess/block_work.h"
#include "annex/retro/preprocess/chunk_text.h"
#include "annex/retro/preprocess/index_builder.h"
#include "annex/retro/preprocess/neighbor_index.h"
#include "annex/retro/preprocess/parallel_work.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/run/collectively.h"

namespace megatron::retro {
namespace {

constexpr const char* kNeighbors = "neighbors";
constexpr int64_t kRowsOfSearch = 1000;

// Finds the neighbours of the chunks of one split.
class SplitQuery {
 public:
  SplitQuery(const RetroConfig& config, const RetroSamples& samples, const ChunkDatabase& database,
             const NeighborIndex& index, const Tokenizer& gpt, const Embedder& embedder)
      : config_(config),
        samples_(samples),
        database_(database),
        index_(index),
        gpt_(gpt),
        embedder_(embedder),
        chunks_per_sample_(config.retro_gpt_seq_length / config.retro_gpt_chunk_length) {}

  int64_t num_chunks() const { return samples_.dataset()->num_samples() * chunks_per_sample_; }

  void write(const Block& block) const {
    std::vector<int64_t> all;
    for (int64_t begin = block.begin; begin < block.end; begin += kRowsOfSearch) {
      const Block part = {begin, std::min(begin + kRowsOfSearch, block.end), {}};
      const std::vector<int64_t> kept = neighbors_of(part);
      all.insert(all.end(), kept.begin(), kept.end());
    }
    Hdf5Writer file(block.path);
    file.add<int64_t>(kNeighbors, all, {block.size(), config_.retro_query_num_neighbors_save});
    file.commit();
  }

 private:
  std::vector<int64_t> neighbors_of(const Block& part) const {
    const int64_t searched = config_.retro_query_num_neighbors_query;
    const int64_t saved = config_.retro_query_num_neighbors_save;
    const std::vector<int64_t> found = index_.search(embedder_.embed(texts_of(part)), searched);
    std::vector<int64_t> kept(static_cast<size_t>(part.size() * saved));
    for_each_number(part.size(), [&](int64_t i) {
      const auto documents = samples_.documents_of((part.begin + i) / chunks_per_sample_);
      const std::span<const int64_t> row(found.data() + i * searched,
                                         static_cast<size_t>(searched));
      std::ranges::copy(kept_neighbors(row, documents, database_, saved), kept.begin() + i * saved);
    });
    return kept;
  }

  std::vector<std::string> texts_of(const Block& part) const {
    std::vector<std::string> texts(static_cast<size_t>(part.size()));
    const int64_t first = part.begin / chunks_per_sample_;
    const int64_t last = (part.end - 1) / chunks_per_sample_;
    for_each_number(last - first + 1, [&](int64_t i) {
      const int64_t sample = first + i;
      std::vector<int64_t> tokens(static_cast<size_t>(samples_.dataset()->sample_size()));
      samples_.dataset()->read(sample, tokens);
      for (int64_t c = 0; c < chunks_per_sample_; ++c) {
        const int64_t chunk = sample * chunks_per_sample_ + c;
        if (chunk < part.begin || chunk >= part.end) continue;
        const auto length = static_cast<size_t>(config_.retro_gpt_chunk_length);
        texts[static_cast<size_t>(chunk - part.begin)] =
            text_of_chunk(std::span(tokens).subspan(static_cast<size_t>(c) * length, length), gpt_);
      }
    });
    return texts;
  }

  const RetroConfig& config_;
  const RetroSamples& samples_;
  const ChunkDatabase& database_;
  const NeighborIndex& index_;
  const Tokenizer& gpt_;
  const Embedder& embedder_;
  int64_t chunks_per_sample_;
};

std::shared_ptr<const NeighborIndex> open_index(const RetroConfig& config) {
  const std::filesystem::path path = added_index_file(config);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw ConfigError(
        fmt::format("{} is missing; run --retro-tasks index-build first", path.string()));
  }
  auto index = std::make_shared<NeighborIndex>(path);
  index->set_effort(config.retro_query_nprobe, config.retro_query_ef_search);
  return index;
}

}  // namespace

std::vector<int64_t> kept_neighbors(std::span<const int64_t> found,
                                    std::span<const ChunkDatabase::Document> documents,
                                    const ChunkDatabase& database, int64_t count) {
  std::vector<int64_t> kept;
  for (const int64_t chunk : found) {
    if (std::ssize(kept) == count) break;
    if (chunk < 0) continue;
    const ChunkDatabase::Document own = database.document_of(chunk);
    if (std::ranges::find(documents, own) == documents.end()) kept.push_back(chunk);
  }
  kept.resize(static_cast<size_t>(count), -1);
  return kept;
}

void query_neighbors(const RetroConfig& config, const RetroSplits& samples, const Tokenizer& gpt,
                     const Embedder& embedder, const comm::Group& world) {
  const ChunkDatabase database(config.retro_workdir, ChunkPart::kTrain,
                               config.retro_gpt_chunk_length, gpt.eod());
  const std::shared_ptr<const NeighborIndex> index = collectively(
      [&] { return comm::broadcast_object(world, [&] { return open_index(config); }); });
  const int64_t saved = config.retro_query_num_neighbors_save;
  for (const Split split : kSplits) {
    const std::optional<RetroSamples>& of_split = samples.of(split);
    if (!of_split) continue;
    const SplitQuery query(config, *of_split, database, *index, gpt, embedder);
    const std::filesystem::path directory =
        neighbor_directory(config.retro_workdir, split, of_split->digest());
    print_line(fmt::format("> {}: {} samples, {} chunks; neighbours are in {}", split_name(split),
                           of_split->dataset()->num_samples(), query.num_chunks(),
                           directory.string()));
    make_missing_blocks(
        {.what = fmt::format("searching neighbours for {}", split_name(split)),
         .count = query.num_chunks(),
         .block_size = config.retro_block_size,
         .directory = directory,
         .is_valid =
             [&](const Hdf5File& file, const Block& block) {
               return file.shape(kNeighbors) == std::vector<int64_t>{block.size(), saved};
             },
         .make = [&](const Block& block) { query.write(block); }},
        world);
  }
}

}  // namespace megatron::retro
