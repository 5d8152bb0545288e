#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "annex/retro/data/mapped_rows.h"
#include "annex/retro/data/work_directory.h"
#include "megatron/data/indexed_dataset.h"

namespace megatron {

// The chunks that Retro retrieves: short token sequences from the documents of several datasets, by
// number. Reading is thread safe; rows and tokens are mapped into memory.
class ChunkDatabase {
 public:
  struct Document {
    int64_t dataset = 0;  // number of the ChunkSource
    int64_t number = 0;   // in its dataset
    bool operator==(const Document&) const = default;
  };
  // A row of the database; tokens [begin, end) of a document.
  struct Chunk {
    Document document;
    int64_t begin = 0;
    int64_t end = 0;
    int64_t bert_length = 0;  // BERT tokens of its text
  };

  // Opens db/merged/<part>.hdf5 of a working directory, and the datasets that
  // indexed_dataset_infos.json names. `eod` follows the tokens of chunks shorter than chunk_length.
  // Throws IoError, and FormatError for a database that is incomplete or not of these datasets.
  ChunkDatabase(const std::filesystem::path& directory, ChunkPart part, int64_t chunk_length,
                int32_t eod);

  int64_t num_chunks() const { return rows_.count(); }
  int64_t chunk_length() const { return chunk_length_; }
  const std::vector<ChunkSource>& sources() const { return sources_; }

  // Below, chunk numbers are taken modulo num_chunks(), as in Python: -1 is the last chunk, and the
  // first follows it. REQUIRES: num_chunks() > 0.
  Chunk chunk(int64_t id) const;
  Document document_of(int64_t id) const { return chunk(id).document; }
  // Throws Error for a row that is not in its dataset. REQUIRES: out.size() == chunk_length().
  void read_tokens(int64_t id, std::span<int64_t> out) const;

 private:
  std::filesystem::path path_;
  int64_t chunk_length_;
  int32_t eod_;
  std::vector<ChunkSource> sources_;
  std::vector<std::shared_ptr<const IndexedDataset>> datasets_;
  MappedRows<uint32_t> rows_;
};

}  // namespace megatron
