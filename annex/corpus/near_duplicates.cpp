#include "annex/corpus/near_duplicates.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "annex/corpus/documents.h"
#include "annex/corpus/json_object.h"
#include "annex/corpus/min_hash.h"
#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/data/numpy_random.h"

namespace megatron::corpus {
namespace {

constexpr double kMinSimilarity = 0.5;  // of a recorded pair, exclusive

// A document on its way from its line to Documents.
struct Fingerprinted {
  std::string id = {};
  std::string text = {};
  std::vector<uint32_t> fingerprint = {};
  std::string problem = {};  // else the other members are empty
};

Fingerprinted fingerprinted(const Line& line, const std::string& key, JsonObject& object,
                            MinHasher& hasher) {
  if (std::optional<std::string> problem = object.parse(line.text)) return {.problem = *problem};
  const std::string* const id = object.text(key);
  const std::string* const text = object.text("text");
  for (const auto& [name, value] : {std::pair{key.c_str(), id}, std::pair{"text", text}}) {
    if (value == nullptr) return {.problem = fmt::format("the object has no text \"{}\"", name)};
  }
  return {.id = *id, .text = *text, .fingerprint = hasher.fingerprint(*text), .problem = {}};
}

void read_documents(const NearDuplicatesConfig& config, const RunOptions& options,
                    const std::vector<uint32_t>& seeds, Documents& documents,
                    NearDuplicatesCounts& counts) {
  std::vector<std::filesystem::path> files;
  for (const KeyedFile& input : config.inputs) files.push_back(input.file);
  const auto make_work = [&] {
    return [&, object = JsonObject(), hasher = MinHasher(seeds)](const Line& line) mutable {
      return fingerprinted(line, config.inputs[line.file_number].key, object, hasher);
    };
  };
  const auto take = [&](const Line& line, Fingerprinted& document) {
    if (!document.problem.empty()) {
      report_bad(options, line, document.problem);
      ++counts.bad_lines;
    } else if (!documents.add(document.id, document.text, document.fingerprint)) {
      report_bad(options, line, fmt::format("an earlier document has the id \"{}\"", document.id));
      ++counts.repeated_ids;
    }
  };
  each_line<Fingerprinted>(files, options, make_work, take);
}

// The documents of a bucket, in their order.
struct Bucket {
  uint32_t seed = 0;  // of its random choices
  std::vector<int64_t> documents;

  // Results.
  std::string lines;
  int64_t compared = 0;
  int64_t pairs = 0;
};

// Splits the documents of one band into buckets and hands out those with more than one.
class Band {
 public:
  Band(const Documents& documents, int64_t band, int64_t rows)
      : documents_(documents), band_(band), rows_(rows) {
    for (int64_t i = 0; i < documents.size(); ++i) {
      // Texts without n-grams are similar to none, but would share all buckets.
      if (std::ranges::count(documents.fingerprint(i), UINT32_MAX) ==
          std::ssize(documents.fingerprint(i))) {
        continue;
      }
      order_.push_back(i);
    }
    std::ranges::sort(order_, [&](int64_t a, int64_t b) {
      const auto order = std::lexicographical_compare_three_way(
          rows_of(a).begin(), rows_of(a).end(), rows_of(b).begin(), rows_of(b).end());
      return order < 0 || (order == 0 && a < b);
    });
    find_buckets();
  }

  bool next(Bucket& bucket) {
    if (next_ == buckets_.size()) return false;
    const auto [begin, end] = buckets_[next_++];
    bucket = {};
    bucket.documents.assign(order_.begin() + begin, order_.begin() + end);
    return true;
  }

 private:
  std::span<const uint32_t> rows_of(int64_t document) const {
    return documents_.fingerprint(document).subspan(static_cast<size_t>(band_ * rows_),
                                                    static_cast<size_t>(rows_));
  }

  void find_buckets() {
    const auto size = std::ssize(order_);
    const auto document = [&](int64_t i) { return order_[static_cast<size_t>(i)]; };
    for (int64_t begin = 0, end = 0; begin < size; begin = end) {
      while (end < size && std::ranges::equal(rows_of(document(begin)), rows_of(document(end)))) {
        ++end;
      }
      if (end - begin > 1) buckets_.emplace_back(begin, end);
    }
    std::ranges::sort(buckets_, [&](const auto& a, const auto& b) {
      return document(a.first) < document(b.first);
    });
  }

  const Documents& documents_;
  int64_t band_;
  int64_t rows_;
  std::vector<int64_t> order_;                        // documents, by rows
  std::vector<std::pair<int64_t, int64_t>> buckets_;  // [begin, end) in order_
  size_t next_ = 0;
};

class BucketSearch {
 public:
  BucketSearch(const NearDuplicatesConfig& config, const Documents& documents)
      : config_(config), documents_(documents) {}

  void operator()(Bucket& bucket) const {
    NumpyRandom random(bucket.seed);
    std::vector<int64_t>& left = bucket.documents;
    for (int64_t i = 0; i != config_.heuristic_iter && left.size() > 1; ++i) {
      const auto main = left.begin() + random.randint(0, std::ssize(left));
      const int64_t main_document = *main;
      left.erase(main);
      remove_similar(main_document, bucket);
    }
  }

 private:
  void remove_similar(int64_t main, Bucket& bucket) const {
    const std::vector<Shingle> main_shingles = shingles_of(documents_.text(main));
    std::string found;
    const auto is_similar = [&](int64_t other) {
      const double similar =
          similarity(main_shingles, shingles_of(documents_.text(other)), config_.jaccard);
      ++bucket.compared;
      if (!(similar > kMinSimilarity)) return false;
      ++bucket.pairs;
      if (!found.empty()) found += ", ";
      found += fmt::format("{{{}: {}}}", json_text(documents_.id(other)), python_repr(similar));
      return true;
    };
    std::vector<int64_t> others;  // std::erase_if may test in any order
    for (const int64_t other : bucket.documents) {
      if (!is_similar(other)) others.push_back(other);
    }
    bucket.documents = std::move(others);
    if (found.empty()) return;
    bucket.lines += fmt::format("{{{}: [{}]}}\n", json_text(documents_.id(main)), found);
  }

  const NearDuplicatesConfig& config_;
  const Documents& documents_;
};

void search_band(const NearDuplicatesConfig& config, int64_t band, const Documents& documents,
                 const RunOptions& options, FileWriter& writer, NearDuplicatesCounts& counts) {
  Band buckets(documents, band, config.num_seeds / config.num_bands);
  NumpyRandom random(static_cast<uint32_t>(config.seed + 1 + band));
  work_in_order<Bucket>(
      options.threads,
      [&](Bucket& bucket) {
        if (!buckets.next(bucket)) return false;
        bucket.seed = random.next();
        return true;
      },
      [&] { return BucketSearch(config, documents); },
      [&](Bucket& bucket) {
        writer.write(bucket.lines);
        ++counts.buckets;
        counts.compared += bucket.compared;
        counts.pairs += bucket.pairs;
      },
      "comparing documents");
}

std::filesystem::path folder_of_texts(const NearDuplicatesConfig& config) {
  const std::filesystem::path& file =
      config.output.empty() ? config.save_fingerprints : config.output;
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace

std::vector<std::string> problems(const NearDuplicatesConfig& config) {
  std::vector<std::string> found;
  if (config.inputs.empty() && config.load_fingerprints.empty()) {
    found.emplace_back("there are no documents; give --inputs FILE KEY, or --load-fingerprints");
  }
  if (config.output.empty() && config.save_fingerprints.empty()) {
    found.emplace_back("there is no output; give --output, or --save-fingerprints");
  }
  if (config.num_bands < 1) {
    found.push_back(fmt::format("--num-bands {} must be at least 1", config.num_bands));
  } else if (config.num_seeds < 1 || config.num_seeds % config.num_bands != 0) {
    found.push_back(fmt::format(
        "--num-seeds {} must be a multiple of --num-bands {}; use {}", config.num_seeds,
        config.num_bands,
        (std::max<int64_t>(config.num_seeds, 0) / config.num_bands + 1) * config.num_bands));
  }
  if (config.heuristic_iter < 1 && config.heuristic_iter != -1) {
    found.push_back(fmt::format(
        "--heuristic-iter {} must be at least 1, or -1 to compare all pairs of a bucket",
        config.heuristic_iter));
  }
  if (config.seed < 0 || config.seed > UINT32_MAX) {
    found.push_back(fmt::format("--seed {} must be in [0, 2^32)", config.seed));
  }
  return found;
}

NearDuplicatesCounts find_near_duplicates(const NearDuplicatesConfig& config,
                                          const RunOptions& options) {
  const std::vector<std::string> wrong = problems(config);
  if (!wrong.empty()) throw ConfigError(wrong);
  std::vector<std::filesystem::path> inputs = config.load_fingerprints;
  for (const KeyedFile& input : config.inputs) inputs.push_back(input.file);
  std::vector<std::filesystem::path> outputs;
  for (const auto& file : {config.output, config.save_fingerprints}) {
    if (!file.empty()) outputs.push_back(file);
  }
  expect_other_files(inputs, outputs);

  const auto seed = static_cast<uint32_t>(config.seed);
  const std::vector<uint32_t> seeds = min_hash_seeds(config.num_seeds, seed);
  Documents documents(
      seeds, config.texts_on_disk ? texts_on_disk(folder_of_texts(config)) : texts_in_memory());
  NearDuplicatesCounts counts;
  for (const auto& file : config.load_fingerprints) counts.repeated_ids += documents.load(file);
  read_documents(config, options, seeds, documents, counts);
  counts.documents = documents.size();
  if (!config.save_fingerprints.empty()) {
    documents.save(config.save_fingerprints, config.num_bands);
  }
  if (config.output.empty()) return counts;
  FileWriter writer(config.output);
  for (int64_t band = 0; band < config.num_bands; ++band) {
    search_band(config, band, documents, options, writer, counts);
  }
  writer.commit();
  return counts;
}

}  // namespace megatron::corpus
