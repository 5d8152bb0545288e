#include "annex/retro/preprocess/chunk_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "annex/retro/data/hdf5_file.h"
#include "annex/retro/data/work_directory.h"
#include "annex/retro/preprocess/block_work.h"
#include "annex/retro/preprocess/parallel_work.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/split.h"
#include "megatron/run/collectively.h"

namespace megatron::retro {
namespace {

using ChunkRow = std::array<uint32_t, 4>;  // document, first token, end, BERT tokens

struct DocumentChunks {
  std::vector<ChunkRow> valid;
  std::vector<ChunkRow> invalid;
};

// Cuts documents of one dataset.
class Cutter {
 public:
  Cutter(const IndexedDataset& data, int64_t chunk_length, const Tokenizer& gpt,
         const Tokenizer& bert)
      : data_(data), chunk_length_(chunk_length), gpt_(gpt), bert_(bert), eod_(gpt.eod()) {}

  DocumentChunks cut(int64_t document) const {
    int64_t length = data_.length(document);
    if (length > std::numeric_limits<uint32_t>::max()) {
      throw ConfigError(fmt::format("{}: document {} has {} tokens; at most {} fit the database",
                                    data_.prefix().string(), document, length,
                                    std::numeric_limits<uint32_t>::max()));
    }
    if (length > 0 && data_.tokens(document, length - 1, 1)[0] == eod_) --length;
    DocumentChunks chunks;
    for (int64_t begin = 0; begin < length; begin += chunk_length_) {
      const int64_t end = std::min(begin + chunk_length_, length);
      const TokenView tokens = data_.tokens(document, begin, end - begin);
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < tokens.size(); ++i) ids.push_back(static_cast<int32_t>(tokens[i]));
      const auto bert_length = static_cast<uint32_t>(bert_.encode(gpt_.decode(ids)).size());
      (bert_length > 0 ? chunks.valid : chunks.invalid)
          .push_back({static_cast<uint32_t>(document), static_cast<uint32_t>(begin),
                      static_cast<uint32_t>(end), bert_length});
    }
    return chunks;
  }

 private:
  const IndexedDataset& data_;
  int64_t chunk_length_;
  const Tokenizer& gpt_;
  const Tokenizer& bert_;
  int32_t eod_;
};

// Compat: an array without rows has the shape [0], as that of an empty list in numpy.
void add_rows(Hdf5Writer& file, const std::string& name, const std::vector<ChunkRow>& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const std::span<const uint32_t> values(rows.empty() ? nullptr : rows[0].data(), 4 * rows.size());
  file.add<uint32_t>(name, values,
                     rows.empty() ? std::vector<int64_t>{0} : std::vector<int64_t>{count, 4});
}

void write_block(const Block& block, const Cutter& cutter) {
  std::vector<DocumentChunks> documents(static_cast<size_t>(block.size()));
  for_each_number(block.size(), [&](int64_t i) {
    documents[static_cast<size_t>(i)] = cutter.cut(block.begin + i);
  });
  DocumentChunks all;
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto& [valid, invalid] = documents[i];
    all.valid.insert(all.valid.end(), valid.begin(), valid.end());
    all.invalid.insert(all.invalid.end(), invalid.begin(), invalid.end());
    offsets.insert(offsets.end(), {static_cast<uint64_t>(block.begin) + i, all.valid.size()});
  }
  Hdf5Writer file(block.path);
  add_rows(file, "chunks_valid", all.valid);
  add_rows(file, "chunks_invalid", all.invalid);
  file.add<uint64_t>("doc_offsets", offsets, {block.size(), 2});
  file.commit();
}

bool is_rows_of_four(const std::vector<int64_t>& shape) {
  return shape == std::vector<int64_t>{0} || (shape.size() == 2 && shape[1] == 4);
}

// Numbers of valid chunks up to the end of each document never fall, and the last is that of all.
bool are_offsets(const std::vector<uint64_t>& offsets, int64_t chunks) {
  uint64_t before = 0;
  for (size_t i = 1; i < offsets.size(); i += 2) {
    if (offsets[i] < before) return false;
    before = offsets[i];
  }
  return before == static_cast<uint64_t>(chunks);
}

bool is_block(const Hdf5File& file, const Block& block) {
  const std::vector<int64_t> valid = file.shape("chunks_valid");
  return is_rows_of_four(valid) && is_rows_of_four(file.shape("chunks_invalid")) &&
         file.shape("doc_offsets") == std::vector<int64_t>{block.size(), 2} &&
         are_offsets(file.read<uint64_t>("doc_offsets"), valid[0]);
}

std::vector<ChunkSource> sources_of(const RetroConfig& config) {
  std::vector<ChunkSource> sources;
  for (size_t i = 0; i + 1 < config.retro_gpt_data_path.size(); i += 2) {
    const std::string& prefix = config.retro_gpt_data_path[i + 1];
    const std::string name = std::filesystem::path(prefix).filename().string();
    sources.push_back({.ratio = std::stod(config.retro_gpt_data_path[i]),
                       .prefix = prefix,
                       .name = name,
                       .blocks = individual_chunks(config.retro_workdir, name)});
  }
  return sources;
}

// Blocks that are there stay, so they must be of these data.
void expect_unchanged(const ChunkSource& source, const RetroConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::exists(chunk_sources_file(config.retro_workdir), ignored)) return;
  for (const ChunkSource& earlier : read_chunk_sources(config.retro_workdir)) {
    if (earlier.name != source.name) continue;
    ChunkSource same = earlier;
    same.prefix = source.prefix;  // the files may have moved
    collectively([&] { expect_same_data(same, config.retro_workdir); });
  }
}

void build_individual(ChunkSource& source, const RetroConfig& config, const Tokenizer& gpt,
                      const Tokenizer& bert, const comm::Group& world) {
  const IndexedDataset data(source.prefix);
  if (data.num_sequences() != data.num_documents()) {
    throw CommonConfigError(fmt::format(
        "{}: has {} documents in {} sentences, and Retro retrieves parts of documents; run "
        "preprocess-data without --split-sentences",
        source.prefix, data.num_documents(), data.num_sequences()));
  }
  expect_unchanged(source, config);
  source.documents = data.num_documents();
  source.digest = data_digest(source.prefix);
  const Cutter cutter(data, config.retro_gpt_chunk_length, gpt, bert);
  make_missing_blocks({.what = fmt::format("cutting documents of {} into chunks", source.name),
                       .count = source.documents,
                       .block_size = config.retro_doc_block_size,
                       .directory = source.blocks,
                       .is_valid = is_block,
                       .make = [&](const Block& block) { write_block(block, cutter); }},
                      world);
}

// Everything that the blocks of one dataset hold.
struct IndividualChunks {
  std::vector<uint32_t> rows;     // [n, 4]
  std::vector<uint64_t> offsets;  // [documents]: valid chunks up to the end of each document
};

IndividualChunks read_blocks(ChunkSource& source) {
  IndividualChunks all;
  source.invalid_chunks = 0;
  for (const Block& block : find_blocks(source.blocks)) {
    const Hdf5File file(block.path);
    const auto before = static_cast<uint64_t>(all.rows.size() / 4);
    const auto rows = file.read<uint32_t>("chunks_valid");
    all.rows.insert(all.rows.end(), rows.begin(), rows.end());
    const auto offsets = file.read<uint64_t>("doc_offsets");
    for (size_t i = 1; i < offsets.size(); i += 2) all.offsets.push_back(before + offsets[i]);
    source.invalid_chunks += file.shape("chunks_invalid")[0];
  }
  source.chunks = std::ssize(all.rows) / 4;
  return all;
}

void count_parts(ChunkSource& source, const IndividualChunks& chunks, double train_fraction,
                 double sample_share) {
  source.train_documents =
      static_cast<int64_t>(train_fraction * static_cast<double>(source.documents));
  source.train_chunks =
      source.train_documents == 0
          ? 0
          : static_cast<int64_t>(chunks.offsets[static_cast<size_t>(source.train_documents) - 1]);
  source.sampled_chunks = static_cast<int64_t>(sample_share);
  if (source.sampled_chunks > source.train_chunks) {
    throw ConfigError(fmt::format(
        "--retro-index-ntrain takes {} chunks of {}, but the documents of the training split have "
        "{}; lower it, or the weight of this dataset",
        source.sampled_chunks, source.prefix, source.train_chunks));
  }
}

// True if this database exists with all its chunks.
bool is_merged(const std::filesystem::path& path, int64_t count) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return false;
  try {
    const Hdf5File file(path);
    return file.shape("chunks") == std::vector<int64_t>{count, 5} &&
           file.read<uint64_t>("n_written") == std::vector<uint64_t>{static_cast<uint64_t>(count)};
  } catch (const FormatError&) {  // made again
    return false;
  }
}

// The rows of one part, [n, 5], and of its documents, [n, 3].
struct MergedChunks {
  std::vector<uint32_t> rows;
  std::vector<uint64_t> offsets;

  void add(uint32_t dataset, std::span<const uint32_t> of_dataset) {
    for (size_t i = 0; i < of_dataset.size(); i += 4) {
      rows.push_back(dataset);
      rows.insert(rows.end(), of_dataset.begin() + static_cast<std::ptrdiff_t>(i),
                  of_dataset.begin() + static_cast<std::ptrdiff_t>(i) + 4);
    }
  }
};

void write_merged(const std::filesystem::path& path, const MergedChunks& merged) {
  const int64_t count = std::ssize(merged.rows) / 5;
  if (is_merged(path, count)) return;
  Hdf5Writer file(path);
  file.add<uint32_t>("chunks", merged.rows, {count, 5});
  if (!merged.offsets.empty()) {
    file.add<uint64_t>("doc_offsets", merged.offsets, {std::ssize(merged.offsets) / 3, 3});
  }
  file.add<uint64_t>("n_written", std::vector<uint64_t>{static_cast<uint64_t>(count)}, {1});
  file.commit();
}

void merge(std::vector<ChunkSource>& sources, const RetroConfig& config) {
  const auto bounds = parse_split(config.retro_gpt_split)[0];
  if (!bounds) {
    throw ConfigError(fmt::format(
        "--retro-gpt-split {} leaves nothing for training, whose documents are retrieved",
        config.retro_gpt_split));
  }
  double ratios = 0;
  for (const ChunkSource& source : sources) ratios += source.ratio;
  MergedChunks train;
  MergedChunks sampled;
  MergedChunks valid;
  for (size_t d = 0; d < sources.size(); ++d) {
    ChunkSource& source = sources[d];
    const IndividualChunks chunks = read_blocks(source);
    count_parts(source, chunks, bounds->upper,
                static_cast<double>(config.retro_index_ntrain) * source.ratio / ratios);
    const auto dataset = static_cast<uint32_t>(d);
    const std::span<const uint32_t> rows(chunks.rows);
    const auto end = static_cast<size_t>(4 * source.train_chunks);
    const auto before = static_cast<uint64_t>(train.rows.size() / 5);
    train.add(dataset, rows.first(end));
    sampled.add(dataset, rows.first(static_cast<size_t>(4 * source.sampled_chunks)));
    valid.add(dataset, rows.subspan(end));
    for (size_t k = 0; k < static_cast<size_t>(source.train_documents); ++k) {
      train.offsets.insert(train.offsets.end(), {d, k, before + chunks.offsets[k]});
    }
  }
  if (train.rows.empty()) {
    throw ConfigError("--retro-gpt-data-path has no chunk for training; give more data");
  }
  std::filesystem::create_directories(
      merged_chunks_file(config.retro_workdir, ChunkPart::kTrain).parent_path());
  write_chunk_sources(config.retro_workdir, sources);
  write_merged(merged_chunks_file(config.retro_workdir, ChunkPart::kSampled), sampled);
  write_merged(merged_chunks_file(config.retro_workdir, ChunkPart::kTrain), train);
  write_merged(merged_chunks_file(config.retro_workdir, ChunkPart::kValid), valid);
}

}  // namespace

void build_chunk_database(const RetroConfig& config, const Tokenizer& gpt, const Tokenizer& bert,
                          const comm::Group& world) {
  std::vector<ChunkSource> sources = sources_of(config);
  for (ChunkSource& source : sources) build_individual(source, config, gpt, bert, world);
  const comm::Working working(world, "merging the chunks of the data sets");
  on_first_rank(world, [&] {
    merge(sources, config);
    for (const ChunkSource& source : sources) {
      print_line(fmt::format(
          "> {}: {} documents, {} for training; {} chunks, {} for training, {} sampled, {} without "
          "a BERT token",
          source.name, source.documents, source.train_documents, source.chunks, source.train_chunks,
          source.sampled_chunks, source.invalid_chunks));
    }
  });
}

}  // namespace megatron::retro
