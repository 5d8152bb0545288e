#include "megatron/data/preprocess.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/start_threads.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/json_line.h"
#include "megatron/data/line_reader.h"
#include "megatron/data/ordered_section.h"
#include "megatron/data/sentence_splitter.h"

namespace megatron {
namespace {

static_assert(LineReader::kPadding >= JsonLineParser::kPadding);

// The documents of one key in one chunk.
struct EncodedKey {
  std::vector<int32_t> ids;
  std::vector<int32_t> lengths;        // of sequences, in tokens
  std::vector<int64_t> num_sequences;  // of documents

  void clear() {
    ids.clear();
    lengths.clear();
    num_sequences.clear();
  }
};

// A chunk of lines in flight from the reader to the datasets. Its memory is reused.
struct Work {
  int64_t number = 0;  // position in the output
  std::filesystem::path file;
  LineChunk chunk;
  int64_t first_index = 0;  // of the chunk's first line among all lines of all files, from 0
  int64_t partition = 0;    // only its lines count

  std::vector<EncodedKey> keys;
  std::vector<std::string> bad_lines;
  int64_t num_bytes = 0;  // bytes of those lines
  int64_t documents = 0;
  int64_t empty_documents = 0;
};

// Hands out the chunks of all files, once per partition; numbers them in that order.
class Input {
 public:
  Input(std::vector<std::filesystem::path> files, int64_t passes)
      : files_(std::move(files)), passes_(passes) {}

  bool next(Work& work) {
    const std::lock_guard lock(mutex_);
    while (pass_ < passes_) {
      if (!reader_) reader_.emplace(files_[file_]);
      if (reader_->next(work.chunk)) {
        work.number = next_number_++;
        work.file = reader_->path();
        work.first_index = num_lines_;
        work.partition = pass_;
        num_lines_ += static_cast<int64_t>(work.chunk.lines.size());
        return true;
      }
      reader_.reset();
      if (++file_ == files_.size()) {
        file_ = 0;
        num_lines_ = 0;
        ++pass_;
      }
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<std::filesystem::path> files_;
  int64_t passes_;
  int64_t pass_ = 0;
  size_t file_ = 0;
  std::optional<LineReader> reader_;
  int64_t num_lines_ = 0;
  int64_t next_number_ = 0;
};

class LineEncoder {
 public:
  LineEncoder(const PreprocessConfig& config, const Tokenizer& tokenizer)
      : config_(config),
        parser_(config.json_keys),
        encoder_(tokenizer.make_encoder()),
        eod_(config.append_eod ? tokenizer.eod() : 0) {
    if (!config.split_sentences) return;
    splitter_.emplace(sentence_rules(config.lang, nltk_data_folders()),
                      SentenceSplitter::Options{.keep_newlines = config.keep_newlines});
  }

  void encode(Work& work, int64_t num_partitions) {
    work.keys.resize(config_.json_keys.size());
    for (EncodedKey& key : work.keys) key.clear();
    work.bad_lines.clear();
    work.num_bytes = 0;
    work.documents = 0;
    work.empty_documents = 0;
    for (size_t i = 0; i < work.chunk.lines.size(); ++i) {
      const int64_t index = work.first_index + static_cast<int64_t>(i);
      if (num_partitions > 1 && index % num_partitions != work.partition) continue;
      work.num_bytes += static_cast<int64_t>(work.chunk.lines[i].size()) + 1;
      const std::optional<std::string> problem = encode_line(work.chunk.lines[i], work);
      if (!problem) continue;
      work.bad_lines.push_back(fmt::format("{}:{}: {}", work.file.string(),
                                           work.chunk.first_line + static_cast<int64_t>(i),
                                           *problem));
      if (!config_.skip_bad_lines) return;
    }
  }

 private:
  // Returns the problem of the line, or nothing after adding a document to each key.
  std::optional<std::string> encode_line(std::string_view line, Work& work) {
    if (std::optional<std::string> problem = parser_.parse(line)) return problem;
    for (size_t k = 0; k < work.keys.size(); ++k) {
      EncodedKey& key = work.keys[k];
      marks_[k] = {key.ids.size(), key.lengths.size()};
      try {
        encode_texts(parser_.texts(k), key);
      } catch (const FormatError& error) {
        for (size_t undone = 0; undone <= k; ++undone) {  // all keys or none
          work.keys[undone].ids.resize(marks_[undone].ids);
          work.keys[undone].lengths.resize(marks_[undone].lengths);
        }
        return fmt::format("key \"{}\": {}", config_.json_keys[k], error.what());
      }
    }
    ++work.documents;
    for (size_t k = 0; k < work.keys.size(); ++k) {
      EncodedKey& key = work.keys[k];
      const size_t sequences = key.lengths.size() - marks_[k].lengths;
      if (sequences == 0) ++work.empty_documents;
      if (sequences == 0 && config_.skip_empty_documents) continue;
      key.num_sequences.push_back(static_cast<int64_t>(sequences));
    }
    return std::nullopt;
  }

  void encode_texts(std::span<const std::string_view> texts, EncodedKey& key) {
    const size_t first_sequence = key.lengths.size();
    if (splitter_) {
      sentences_.clear();
      for (const std::string_view text : texts) splitter_->split(text, sentences_);
      texts = sentences_;
    }
    for (const std::string_view text : texts) {
      const size_t before = key.ids.size();
      encoder_->append(text, key.ids);
      if (key.ids.size() > before) key.lengths.push_back(length_of(key.ids.size() - before));
    }
    if (config_.append_eod && key.lengths.size() > first_sequence) {
      key.ids.push_back(eod_);
      ++key.lengths.back();
    }
  }

  static int32_t length_of(size_t num_tokens) {
    if (num_tokens >= size_t{1} << 31) {
      throw FormatError("the text has 2^31 tokens or more, which an index cannot hold; split it");
    }
    return static_cast<int32_t>(num_tokens);
  }

  struct Mark {
    size_t ids = 0;
    size_t lengths = 0;
  };

  const PreprocessConfig& config_;
  JsonLineParser parser_;
  std::unique_ptr<Encoder> encoder_;
  int32_t eod_;
  std::optional<SentenceSplitter> splitter_;
  std::vector<std::string_view> sentences_;
  std::vector<Mark> marks_ = std::vector<Mark>(config_.json_keys.size());
};

// The datasets, one per key, and their statistics.
class Output {
 public:
  Output(const PreprocessConfig& config, const Tokenizer& tokenizer, const PreprocessEvents& events)
      : config_(config),
        events_(events),
        start_(std::chrono::steady_clock::now()),
        next_report_(config.log_interval) {
    const bool is_tntidx = config.dataset_impl != "mmap";
    IndexedDatasetBuilder::Options options;
    options.dtype = is_tntidx ? TokenDtype::kInt32 : token_dtype_for_vocab(tokenizer.vocab_size());
    options.format = is_tntidx ? IndexFormat::kTntidx : IndexFormat::kMmididx;
    for (const std::string& key : config.json_keys) {
      builders_.push_back(
          std::make_unique<IndexedDatasetBuilder>(dataset_prefix(config, key), options));
    }
  }

  void add(const Work& work) {
    for (const std::string& line : work.bad_lines) {
      if (!config_.skip_bad_lines) {
        throw FormatError(line + "; correct the line, or skip such lines with --skip-bad-lines");
      }
      if (events_.on_bad_line) events_.on_bad_line(line);
    }
    for (size_t k = 0; k < builders_.size(); ++k) add_documents(work.keys[k], *builders_[k]);
    stats_.bad_lines += static_cast<int64_t>(work.bad_lines.size());
    stats_.empty_documents += work.empty_documents;
    stats_.input_bytes += work.num_bytes;
    stats_.documents += work.documents;
    report_progress();
  }

  void finalize() {
    if (stats_.documents == 0) {
      throw FormatError(fmt::format("{}: no document found ({} bad lines); nothing was written",
                                    config_.input, stats_.bad_lines));
    }
    for (size_t k = 0; k < builders_.size(); ++k) {
      if (builders_[k]->num_tokens() > 0) continue;
      throw FormatError(fmt::format("{}: no text under key \"{}\" has a token; nothing was written",
                                    config_.input, config_.json_keys[k]));
    }
    for (const auto& builder : builders_) builder->finalize();
  }

  PreprocessStats stats() const {
    PreprocessStats now = stats_;
    for (const auto& builder : builders_) now.tokens += builder->num_tokens();
    now.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    return now;
  }

 private:
  void report_progress() {
    if (!events_.on_progress || stats_.documents < next_report_) return;
    PreprocessStats now = stats();
    for (; next_report_ <= stats_.documents; next_report_ += config_.log_interval) {
      now.documents = next_report_;
      events_.on_progress(now);
    }
  }

  static void add_documents(const EncodedKey& key, IndexedDatasetBuilder& builder) {
    std::span<const int32_t> ids = key.ids;
    std::span<const int32_t> lengths = key.lengths;
    for (const int64_t sequences : key.num_sequences) {
      const std::span<const int32_t> own = lengths.first(static_cast<size_t>(sequences));
      size_t tokens = 0;
      for (const int32_t length : own) tokens += static_cast<size_t>(length);
      builder.add_document(ids.first(tokens), own);
      ids = ids.subspan(tokens);
      lengths = lengths.subspan(own.size());
    }
  }

  const PreprocessConfig& config_;
  const PreprocessEvents& events_;
  std::chrono::steady_clock::time_point start_;
  std::vector<std::unique_ptr<IndexedDatasetBuilder>> builders_;
  PreprocessStats stats_;
  int64_t next_report_;  // documents
};

}  // namespace

std::vector<std::string> problems(const PreprocessConfig& config) {
  std::vector<std::string> found;
  if (config.input.empty()) found.push_back("--input is missing; give a file of JSON lines");
  if (config.output_prefix.empty()) {
    found.push_back(
        "--output-prefix is missing; give the path of the datasets without _text_document");
  }
  if (config.json_keys.empty()) found.push_back("--json-keys is empty; name at least one key");
  const std::set<std::string> distinct(config.json_keys.begin(), config.json_keys.end());
  if (distinct.size() != config.json_keys.size()) {
    found.push_back("--json-keys names a key twice; each key makes one dataset");
  }
  if (config.split_sentences) {
    try {
      sentence_rules(config.lang, nltk_data_folders());
    } catch (const ConfigError& error) {
      found.emplace_back(error.what());
    }
  }
  if (config.dataset_impl != "mmap" && config.dataset_impl != "cached" &&
      config.dataset_impl != "lazy") {
    found.push_back(fmt::format("--dataset-impl {} is not known; use one of mmap, cached, lazy",
                                config.dataset_impl));
  }
  if (config.partitions < 1) {
    found.push_back(fmt::format("--partitions {} must be at least 1", config.partitions));
  }
  if (config.workers < 1) {
    found.push_back(fmt::format("--workers {} must be at least 1", config.workers));
  } else if (config.partitions > 1 && config.workers % config.partitions != 0) {
    found.push_back(fmt::format("--workers {} must be a multiple of --partitions {}; use {}",
                                config.workers, config.partitions,
                                (config.workers / config.partitions + 1) * config.partitions));
  }
  if (config.log_interval < 1) {
    found.push_back(fmt::format("--log-interval {} must be at least 1", config.log_interval));
  }
  return found;
}

std::string dataset_prefix(const PreprocessConfig& config, const std::string& key) {
  return config.output_prefix + "_" + key + (config.split_sentences ? "_sentence" : "_document");
}

std::vector<std::filesystem::path> files_of_pattern(const std::string& pattern) {
  glob_t matches{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<std::filesystem::path> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (status != 0 || files.empty()) {
    throw ConfigError(fmt::format("--input {}: no file matches; check the pattern", pattern));
  }
  std::sort(files.begin(), files.end());
  return files;
}

PreprocessStats preprocess(const PreprocessConfig& config, const Tokenizer& tokenizer,
                           const PreprocessEvents& events) {
  const std::vector<std::string> wrong = problems(config);
  if (!wrong.empty()) throw ConfigError(wrong);
  std::vector<std::filesystem::path> files = {config.input};
  if (config.partitions > 1) files = files_of_pattern(config.input);
  const bool deals = config.partitions > 1 && !config.keep_sequential_samples;
  const int64_t passes = deals ? config.partitions : 1;

  Input input(std::move(files), passes);
  Output output(config, tokenizer, events);
  OrderedSection section;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto work_off = [&] {
    try {
      LineEncoder encoder(config, tokenizer);
      Work work;
      while (input.next(work)) {
        encoder.encode(work, passes);
        if (!section.run(work.number, [&] { output.add(work); })) return;
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      section.abort();
    }
  };
  std::vector<std::thread> threads = start_threads(config.workers - 1, work_off, "tokenizing");
  work_off();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  output.finalize();
  return output.stats();
}

}  // namespace megatron
