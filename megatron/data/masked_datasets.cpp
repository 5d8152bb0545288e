#include "megatron/data/masked_datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMaskedSampleIndex = "sample_index";
constexpr int64_t kNoLabel = -1;

Json describe_masking(Json description, const MaskingOptions& masking, double short_seq_prob) {
  description["masking_probability"] = masking.probability;
  description["short_sequence_probability"] = short_seq_prob;
  description["masking_max_ngram"] = masking.max_ngram;
  description["masking_do_full_word"] = true;
  description["masking_do_permutation"] = false;
  description["masking_use_longer_ngrams"] = false;
  description["masking_use_geometric_distribution"] = masking.is_geometric;
  return description;
}

Json bert_description(const std::string& prefix, Split split, std::optional<int64_t> num_samples,
                      const DatasetOptions& options, const BertDataset::Settings& settings) {
  Json description = describe_masking(
      dataset_description("BERTMaskedWordPieceDataset", prefix, split, num_samples, options),
      settings.masking, settings.short_seq_prob);
  description["classification_head"] = settings.has_binary_head;
  return description;
}

Json t5_description(const std::string& prefix, Split split, std::optional<int64_t> num_samples,
                    const DatasetOptions& options, const T5Dataset::Settings& settings) {
  Json description = describe_masking(
      dataset_description("T5MaskedWordPieceDataset", prefix, split, num_samples, options),
      settings.masking, settings.short_seq_prob);
  description["sequence_length_decoder"] = settings.decoder_seq_length;
  return description;
}

// True if all rows of a cached index refer to sentences of this dataset.
bool fits(const SentenceIndex& index, const IndexedDataset& data,
          const SentenceIndexOptions& options) {
  if (index.num_samples() < std::max<int64_t>(options.num_samples.value_or(0), 1)) return false;
  for (int64_t i = 0; i < index.num_samples(); ++i) {
    const SentenceIndex::Row row = index.row(i);
    if (row.begin >= row.end || row.end > data.num_sequences()) return false;
  }
  return true;
}

std::optional<SentenceIndex> load(const IndexCache& cache, const IndexedDataset& data,
                                  const SentenceIndexOptions& options) {
  if (!cache.holds({kMaskedSampleIndex})) return std::nullopt;
  NpyFile file(cache.array_file(kMaskedSampleIndex));
  SentenceIndex index;
  if (file.descr() == npy_descr<uint64_t>()) {
    index.wide = NpyArray<uint64_t>(std::move(file));
  } else {
    index.narrow = NpyArray<uint32_t>(std::move(file));
  }
  if (fits(index, data, options)) return index;
  warn(fmt::format("{}: the cached index does not fit the dataset {}; rebuilding it",
                   cache.description_file().string(), data.prefix().string()));
  return std::nullopt;
}

SentenceIndex load_or_build(const IndexedDataset& data, SplitBounds bounds,
                            const SentenceIndexOptions& options, const IndexCache& cache) {
  if (std::optional<SentenceIndex> cached = load(cache, data, options)) return *std::move(cached);
  const int64_t wanted = options.num_samples.value_or(0);
  cache.announce(wanted, wanted * 3 * static_cast<int64_t>(sizeof(uint32_t)));
  SentenceIndex index =
      build_sentence_index(data, split_range(bounds, data.num_documents()), options);
  const bool is_saved = cache.save([&] {
    const std::filesystem::path file = cache.array_file(kMaskedSampleIndex);
    index.narrow.empty() ? index.wide.save(file) : index.narrow.save(file);
  });
  // Processes of a host share mapped pages, which the system can drop when memory is short.
  if (is_saved) {
    if (std::optional<SentenceIndex> mapped = load(cache, data, options)) return *std::move(mapped);
  }
  return index;
}

void expect_sample(const IndexedDataset& data, int64_t sample, int64_t num_samples) {
  if (sample >= 0 && sample < num_samples) return;
  throw Error(
      fmt::format("{}: sample {} is outside [0, {})", data.prefix().string(), sample, num_samples));
}

// The tokens of sentences [begin, end). Throws FormatError for a token outside the vocabulary.
std::vector<int64_t> tokens_of(const IndexedDataset& data, int64_t begin, int64_t end,
                               int64_t vocab_size) {
  const TokenView view = data.slice(begin, end);
  std::vector<int64_t> tokens(static_cast<size_t>(view.size()));
  view.copy_to(tokens);
  const auto foreign = std::find_if(tokens.begin(), tokens.end(), [&](int64_t token) {
    return token < 0 || token >= vocab_size;
  });
  if (foreign != tokens.end()) {
    throw FormatError(
        fmt::format("{}: sentences {} to {} hold token {}, but the tokenizer has {} ids; give the "
                    "tokenizer this dataset was preprocessed with",
                    data.prefix().string(), begin, end, *foreign, vocab_size));
  }
  return tokens;
}

NumpyRandom random_of(int64_t seed, int64_t sample) {
  return NumpyRandom(static_cast<uint32_t>(seed + sample));  // modulo 2^32
}

// Drops tokens at random ends of the longer part until both together have at most `target` tokens.
bool truncate(std::vector<int64_t>& a, std::vector<int64_t>& b, int64_t target,
              NumpyRandom& random) {
  bool is_truncated = false;
  while (static_cast<int64_t>(a.size() + b.size()) > target) {
    std::vector<int64_t>& longer = a.size() > b.size() ? a : b;
    if (random.random() < 0.5) {
      longer.erase(longer.begin());
    } else {
      longer.pop_back();
    }
    is_truncated = true;
  }
  return is_truncated;
}

SentenceIndexOptions index_options(std::optional<int64_t> num_samples,
                                   const DatasetOptions& options, int64_t reserved,
                                   double short_seq_prob, int64_t min_sentences) {
  return {.num_samples = num_samples,
          .max_length = options.seq_length - reserved,
          .short_seq_prob = short_seq_prob,
          .min_sentences = min_sentences,
          .seed = options.seed};
}

}  // namespace

BertSample::BertSample(std::span<int64_t> run)
    : text(run.subspan(0, (run.size() - 2) / 5)),
      types(run.subspan(text.size(), text.size())),
      labels(run.subspan(2 * text.size(), text.size())),
      loss_mask(run.subspan(3 * text.size(), text.size())),
      padding_mask(run.subspan(4 * text.size(), text.size())),
      is_random(run[run.size() - 2]),
      is_truncated(run[run.size() - 1]) {}

T5Sample::T5Sample(std::span<int64_t> run, int64_t encoder_seq_length)
    : encoder(run.subspan(0, static_cast<size_t>(encoder_seq_length))),
      decoder(run.subspan(encoder.size(), (run.size() - 1 - encoder.size()) / 3)),
      labels(run.subspan(encoder.size() + decoder.size(), decoder.size())),
      loss_mask(run.subspan(encoder.size() + 2 * decoder.size(), decoder.size())),
      is_truncated(run[run.size() - 1]) {}

BertDataset::BertDataset(std::shared_ptr<const IndexedDataset> data, SplitBounds bounds,
                         Split split, std::optional<int64_t> num_samples,
                         const DatasetOptions& options, const Settings& settings)
    : data_(std::move(data)),
      seq_length_(options.seq_length),
      seed_(options.seed),
      settings_(settings),
      // cls and two sep take three tokens.
      index_(load_or_build(*data_, bounds,
                           index_options(num_samples, options, 3, settings.short_seq_prob,
                                         settings.has_binary_head ? 2 : 1),
                           index_cache_of(bert_description(data_->prefix().string(), split,
                                                           num_samples, options, settings),
                                          data_->prefix(), split, options))) {}

void BertDataset::read(int64_t sample, std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == sample_size(), "out has room for one sample");
  expect_sample(*data_, sample, num_samples());
  const MaskingVocabulary& vocabulary = *settings_.vocabulary;
  const SentenceIndex::Row row = index_.row(sample);
  NumpyRandom random = random_of(seed_, sample);
  BertSample result(out);

  int64_t pivot = row.end;
  if (settings_.has_binary_head) {
    const int64_t sentences = row.end - row.begin;
    pivot = row.begin + (sentences >= 3 ? random.randint(1, sentences) : 1);
  }
  std::vector<int64_t> a = tokens_of(*data_, row.begin, pivot, vocabulary.size);
  std::vector<int64_t> b = tokens_of(*data_, pivot, row.end, vocabulary.size);
  result.is_random = settings_.has_binary_head && random.random() < 0.5 ? 1 : 0;
  if (result.is_random != 0) std::swap(a, b);
  result.is_truncated = truncate(a, b, row.target, random) ? 1 : 0;

  std::vector<int64_t> tokens = {vocabulary.cls};
  tokens.insert(tokens.end(), a.begin(), a.end());
  tokens.push_back(vocabulary.sep);
  const size_t end_of_a = tokens.size();
  tokens.insert(tokens.end(), b.begin(), b.end());
  if (!b.empty()) tokens.push_back(vocabulary.sep);

  const auto replacement = [&](int64_t token, NumpyRandom& draws) {
    if (draws.random() < 0.8) return vocabulary.mask;
    return draws.random() < 0.5 ? token : draws.randint(0, vocabulary.size);
  };
  const std::vector<MaskedSpan> spans =
      mask_words(tokens, row.target, settings_.masking, vocabulary, random, replacement);

  std::fill(result.text.begin(), result.text.end(), vocabulary.pad);
  std::copy(tokens.begin(), tokens.end(), result.text.begin());
  // Compat: Megatron-LM pads types with the id of [PAD], which is 0 in every BERT vocabulary.
  std::fill(result.types.begin(), result.types.end(), vocabulary.pad);
  std::fill_n(result.types.begin(), tokens.size(), 0);
  std::fill_n(result.types.begin() + static_cast<int64_t>(end_of_a), tokens.size() - end_of_a, 1);
  std::fill(result.padding_mask.begin(), result.padding_mask.end(), 0);
  std::fill_n(result.padding_mask.begin(), tokens.size(), 1);
  std::fill(result.labels.begin(), result.labels.end(), kNoLabel);
  std::fill(result.loss_mask.begin(), result.loss_mask.end(), 0);
  for (const MaskedSpan& span : spans) {
    for (size_t i = 0; i < span.positions.size(); ++i) {
      const auto position = static_cast<size_t>(span.positions[i]);
      result.labels[position] = span.originals[i];
      result.loss_mask[position] = 1;
    }
  }
}

T5Dataset::T5Dataset(std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
                     std::optional<int64_t> num_samples, const DatasetOptions& options,
                     const Settings& settings)
    : data_(std::move(data)),
      seq_length_(options.seq_length),
      seed_(options.seed),
      settings_(settings),
      index_(load_or_build(
          *data_, bounds, index_options(num_samples, options, 2, settings.short_seq_prob, 1),
          index_cache_of(
              t5_description(data_->prefix().string(), split, num_samples, options, settings),
              data_->prefix(), split, options))) {}

void T5Dataset::read(int64_t sample, std::span<int64_t> out) const {
  invariant(static_cast<int64_t>(out.size()) == sample_size(), "out has room for one sample");
  expect_sample(*data_, sample, num_samples());
  const MaskingVocabulary& vocabulary = *settings_.vocabulary;
  const SentenceIndex::Row row = index_.row(sample);
  NumpyRandom random = random_of(seed_, sample);
  T5Sample result(out, seq_length_);

  std::vector<int64_t> tokens = tokens_of(*data_, row.begin, row.end, vocabulary.size);
  const auto length = std::min(tokens.size(), static_cast<size_t>(row.target));
  result.is_truncated = length < tokens.size() ? 1 : 0;
  tokens.resize(length);
  const std::vector<MaskedSpan> spans =
      mask_words(tokens, row.target, settings_.masking, vocabulary, random,
                 [&](int64_t, NumpyRandom&) { return vocabulary.mask; });
  if (spans.size() > vocabulary.sentinels.size()) {
    throw ConfigError(fmt::format(
        "{}: sample {} has {} masked spans, but the vocabulary has {} sentinels; give "
        "--vocab-extra-ids {} or more (100 is usual)",
        data_->prefix().string(), sample, spans.size(), vocabulary.sentinels.size(), spans.size()));
  }

  std::vector<int64_t> encoder;
  std::vector<int64_t> target;  // sentinels and their spans
  size_t next = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    const MaskedSpan& span = spans[i];
    const auto begin = static_cast<size_t>(span.positions.front());
    for (; next < begin; ++next) encoder.push_back(tokens[next]);
    next = static_cast<size_t>(span.positions.back()) + 1;
    encoder.push_back(vocabulary.sentinels[i]);
    target.push_back(vocabulary.sentinels[i]);
    target.insert(target.end(), span.originals.begin(), span.originals.end());
  }
  for (; next < tokens.size(); ++next) encoder.push_back(tokens[next]);

  if (target.size() + 1 > result.decoder.size() || encoder.size() > result.encoder.size()) {
    throw ConfigError(fmt::format(
        "{}: sample {} needs {} tokens in the encoder and {} in the decoder, which have {} and {}; "
        "give a larger --encoder-seq-length or --decoder-seq-length",
        data_->prefix().string(), sample, encoder.size(), target.size() + 1, result.encoder.size(),
        result.decoder.size()));
  }
  std::fill(result.encoder.begin(), result.encoder.end(), vocabulary.pad);
  std::copy(encoder.begin(), encoder.end(), result.encoder.begin());
  std::fill(result.decoder.begin(), result.decoder.end(), vocabulary.pad);
  result.decoder[0] = vocabulary.bos;
  std::copy(target.begin(), target.end(), result.decoder.begin() + 1);
  std::fill(result.labels.begin(), result.labels.end(), kNoLabel);
  std::copy(target.begin(), target.end(), result.labels.begin());
  result.labels[target.size()] = vocabulary.eos;
  std::fill(result.loss_mask.begin(), result.loss_mask.end(), 0);
  std::fill_n(result.loss_mask.begin(), target.size() + 1, 1);
}

namespace {

// Dataset is made with its settings, and `describe` describes it.
template <class Dataset, class Describe>
DatasetMaker maker_of(const typename Dataset::Settings& settings, const Describe& describe) {
  return {
      .describe =
          [settings, describe](const std::string& prefix, Split split,
                               std::optional<int64_t> num_samples, const DatasetOptions& options) {
            return describe(prefix, split, num_samples, options, settings);
          },
      .make =
          [settings](std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
                     std::optional<int64_t> num_samples, const DatasetOptions& options) {
            return std::make_shared<const Dataset>(std::move(data), bounds, split, num_samples,
                                                   options, settings);
          },
      .is_split_by_document = true};
}

}  // namespace

DatasetMaker bert_dataset_maker(const BertDataset::Settings& settings) {
  return maker_of<BertDataset>(settings, bert_description);
}

DatasetMaker t5_dataset_maker(const T5Dataset::Settings& settings) {
  return maker_of<T5Dataset>(settings, t5_description);
}

}  // namespace megatron
