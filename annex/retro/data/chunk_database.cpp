#include "annex/retro/data/chunk_database.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr int64_t kColumns = 5;  // dataset, document, begin, end, BERT length

}  // namespace

ChunkDatabase::ChunkDatabase(const std::filesystem::path& directory, ChunkPart part,
                             int64_t chunk_length, int32_t eod)
    : path_(merged_chunks_file(directory, part)),
      chunk_length_(chunk_length),
      eod_(eod),
      sources_(read_chunk_sources(directory)),
      rows_(path_, "chunks") {
  for (const ChunkSource& source : sources_) {
    expect_same_data(source, directory);
    datasets_.push_back(std::make_shared<const IndexedDataset>(source.prefix));
  }
  const std::vector<uint64_t> written = Hdf5File(path_).read<uint64_t>("n_written");
  const bool is_complete = written.size() == 1 && static_cast<int64_t>(written[0]) == num_chunks();
  if (!is_complete || (rows_.columns() != kColumns && num_chunks() > 0)) {
    throw FormatError(fmt::format(
        "{}: is not complete; run megatron retro-preprocess --retro-tasks db-build again",
        path_.string()));
  }
}

ChunkDatabase::Chunk ChunkDatabase::chunk(int64_t id) const {
  const int64_t count = num_chunks();
  invariant(count > 0, "the database has chunks");
  const std::span<const uint32_t> row = rows_[((id % count) + count) % count];
  return {{row[0], row[1]}, row[2], row[3], row[4]};
}

void ChunkDatabase::read_tokens(int64_t id, std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == chunk_length_, "out has room for one chunk");
  const Chunk chunk = this->chunk(id);
  const auto dataset = static_cast<size_t>(chunk.document.dataset);
  const int64_t size = chunk.end - chunk.begin;
  const bool fits = dataset < datasets_.size() && 0 <= size && size <= chunk_length_ &&
                    chunk.document.number < datasets_[dataset]->num_sequences() &&
                    chunk.end <= datasets_[dataset]->length(chunk.document.number);
  if (!fits) {
    throw FormatError(fmt::format(
        "{}: chunk {} is tokens [{}, {}) of document {} of dataset {}, which do not exist or are "
        "more than --retro-gpt-chunk-length {}; run megatron retro-preprocess for this data again",
        path_.string(), id, chunk.begin, chunk.end, chunk.document.number, chunk.document.dataset,
        chunk_length_));
  }
  const auto tokens = out.first(static_cast<size_t>(size));
  datasets_[dataset]->tokens(chunk.document.number, chunk.begin, size).copy_to(tokens);
  std::fill(out.begin() + size, out.end(), int64_t{eod_});
}

}  // namespace megatron
