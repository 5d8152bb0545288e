#include "megatron/data/gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

constexpr std::string_view kDocumentIndex = "document_index";
constexpr std::string_view kSampleIndex = "sample_index";
constexpr std::string_view kShuffleIndex = "shuffle_index";

IndexCache cache_of(const std::filesystem::path& prefix, Split split,
                    std::optional<int64_t> num_samples, const DatasetOptions& options) {
  return index_cache_of(
      dataset_description("GPTDataset", prefix.string(), split, num_samples, options), prefix,
      split, options);
}

}  // namespace

namespace {

// Data of another tokenizer usually shows at the start: checks the first tokens of some sequences.
// Every sample is checked again when it is read.
void expect_known_ids(const IndexedDataset& data, IndexRange sequences, int64_t vocab_size) {
  constexpr int64_t kSequences = 64;
  constexpr int64_t kTokens = 256;
  std::vector<int64_t> ids;
  const int64_t count = std::min(kSequences, sequences.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sequence = sequences.begin + i * sequences.size() / count;
    ids.resize(static_cast<size_t>(std::min(kTokens, data.length(sequence))));
    data.tokens(sequence, 0, static_cast<int64_t>(ids.size())).copy_to(ids);
    for (const int64_t id : ids) {
      if (id >= 0 && id < vocab_size) continue;
      throw FormatError(fmt::format(
          "{}: sequence {} holds token {}, but the tokenizer has {} ids; give the tokenizer this "
          "dataset was preprocessed with",
          data.prefix().string(), sequence, id, vocab_size));
    }
  }
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> data, IndexRange sequences,
                       Split split, std::optional<int64_t> num_samples,
                       const DatasetOptions& options)
    : data_(std::move(data)), seq_length_(options.seq_length), vocab_size_(options.vocab_size) {
  const int64_t tokens = count_tokens(*data_, sequences);
  if (tokens == 0) {
    throw ConfigError(fmt::format(
        "{}: the {} split has {} of {} sequences and no tokens, but {} samples of it are needed; "
        "change --split, add data, or ask for no samples (--eval-iters 0)",
        data_->prefix().string(), split_name(split), sequences.size(), data_->num_sequences(),
        num_samples.value_or(1)));
  }
  expect_known_ids(*data_, sequences, vocab_size_);
  load_or_build(sequences, plan_epochs(tokens, num_samples, seq_length_), options.seed,
                cache_of(data_->prefix(), split, num_samples, options));
}

void GptDataset::load_or_build(IndexRange sequences, const EpochPlan& plan, int64_t seed,
                               const IndexCache& cache) {
  if (load(sequences, plan, cache)) return;
  cache.announce(plan.num_samples, index_bytes(sequences, plan));
  index_ = build_gpt_index(*data_, sequences, plan, seq_length_, seed);
  const bool saved = cache.save([&] {
    index_.document_index.save(cache.array_file(kDocumentIndex));
    if (!index_.sample_index.empty()) index_.sample_index.save(cache.array_file(kSampleIndex));
    if (!index_.wide_sample_index.empty()) {
      index_.wide_sample_index.save(cache.array_file(kSampleIndex));
    }
    if (index_.wide_shuffle_index.empty()) {
      index_.shuffle_index.save(cache.array_file(kShuffleIndex));
    } else {
      index_.wide_shuffle_index.save(cache.array_file(kShuffleIndex));
    }
  });
  // Processes of a host share mapped pages, which the system can drop when memory is short.
  if (saved) load(sequences, plan, cache);
}

bool GptDataset::load(IndexRange sequences, const EpochPlan& plan, const IndexCache& cache) {
  if (!cache.holds({kDocumentIndex, kSampleIndex, kShuffleIndex})) return false;
  GptIndex index;
  index.document_index = NpyArray<int32_t>(NpyFile(cache.array_file(kDocumentIndex)));
  NpyFile samples(cache.array_file(kSampleIndex));
  if (samples.descr() == npy_descr<int64_t>()) {
    index.wide_sample_index = NpyArray<int64_t>(std::move(samples));
  } else {
    index.sample_index = NpyArray<int32_t>(std::move(samples));
  }
  NpyFile order(cache.array_file(kShuffleIndex));
  if (order.descr() == npy_descr<int64_t>()) {
    index.wide_shuffle_index = NpyArray<int64_t>(std::move(order));
  } else {
    index.shuffle_index = NpyArray<uint32_t>(std::move(order));
  }

  // The name of a cache file does not depend on the size of its data.
  const bool fits = index.num_samples() == plan.num_samples &&
                    index.num_positions() == plan.num_samples + 1 &&
                    index.document_index.size() == plan.num_epochs * sequences.size();
  if (!fits) {
    warn(fmt::format("{}: cached index has {} samples, the dataset {} now has {}; rebuilding it",
                     cache.description_file().string(), index.num_samples(),
                     data_->prefix().string(), plan.num_samples));
    return false;
  }
  index_ = std::move(index);
  return true;
}

template <class Part>
void GptDataset::each_part(int64_t sample, const Part& part) const {
  if (sample < 0 || sample >= num_samples()) {
    throw Error(fmt::format("{}: sample {} is outside [0, {})", data_->prefix().string(), sample,
                            num_samples()));
  }
  const int64_t row = index_.shuffled(sample);
  const bool known_row = row >= 0 && row < num_samples();
  GptIndex::Position at = known_row ? index_.position(row) : GptIndex::Position{-1, 0};
  int64_t filled = 0;
  while (filled < sample_size()) {
    if (at.document < 0 || at.document >= index_.document_index.size()) {
      throw FormatError(
          fmt::format("{}: the cached index does not match the dataset at sample {}; "
                      "delete the cache files of this dataset",
                      data_->prefix().string(), sample));
    }
    const int64_t sequence = index_.document_index[at.document];
    const bool is_there = sequence >= 0 && sequence < data_->num_sequences();
    const int64_t rest = is_there ? data_->length(sequence) - at.offset : -1;
    if (rest < 0) {
      throw FormatError(
          fmt::format("{}: the cached index does not match the dataset at sample {}, sequence {}; "
                      "delete the cache files of this dataset",
                      data_->prefix().string(), sample, sequence));
    }
    const int64_t count = std::min(rest, sample_size() - filled);
    part(sequence, at.offset, count);
    filled += count;
    at = {at.document + 1, 0};
  }
}

std::vector<int64_t> GptDataset::sequences_of(int64_t sample) const {
  std::vector<int64_t> sequences;
  each_part(sample, [&](int64_t sequence, int64_t, int64_t) { sequences.push_back(sequence); });
  return sequences;
}

void GptDataset::read(int64_t sample, std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == sample_size(), "out has room for one sample");
  size_t filled = 0;
  each_part(sample, [&](int64_t sequence, int64_t offset, int64_t count) {
    data_->tokens(sequence, offset, count).copy_to(out.subspan(filled, static_cast<size_t>(count)));
    filled += static_cast<size_t>(count);
  });
  const auto foreign = std::find_if(
      out.begin(), out.end(), [&](int64_t token) { return token < 0 || token >= vocab_size_; });
  if (foreign != out.end()) {
    throw FormatError(fmt::format(
        "{}: sample {} holds token {}, but the tokenizer has {} ids; give the tokenizer this "
        "dataset was preprocessed with",
        data_->prefix().string(), sample, *foreign, vocab_size_));
  }
}

}  // namespace megatron
