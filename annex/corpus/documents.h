#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace megatron::corpus {

// Storage of the documents' texts during comparison.
class TextStore {
 public:
  virtual ~TextStore() = default;
  virtual void add(std::string_view text) = 0;
  // A text by its number, from 0. Any thread may call; no add() at the same time.
  virtual std::string text(int64_t number) const = 0;
};

std::unique_ptr<TextStore> texts_in_memory();
// Texts in a file without a name in `folder`, which vanishes with the store. Throws IoError.
std::unique_ptr<TextStore> texts_on_disk(const std::filesystem::path& folder);

// Documents with ids, fingerprints and texts. A document takes 4 bytes for each seed (400 by
// default), its id and about 100 bytes more; and its text, unless texts are on disk (8 bytes).
class Documents {
 public:
  Documents(std::vector<uint32_t> seeds, std::unique_ptr<TextStore> texts)
      : seeds_(std::move(seeds)), texts_(std::move(texts)) {}

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  // False, without adding, if a document has this id.
  bool add(std::string_view id, std::string_view text, std::span<const uint32_t> fingerprint);

  const std::string& id(int64_t number) const { return ids_[static_cast<size_t>(number)]; }
  std::string text(int64_t number) const { return texts_->text(number); }
  std::span<const uint32_t> fingerprint(int64_t number) const {
    const size_t width = seeds_.size();
    return std::span(fingerprints_).subspan(static_cast<size_t>(number) * width, width);
  }

  // Files of documents: docs/formats/fingerprints.md. load() adds to the documents and returns how
  // many were left out because their ids are known. Both throw IoError; load() FormatError for a
  // damaged file, and ConfigError if its seeds are others.
  void save(const std::filesystem::path& path, int64_t num_bands) const;
  int64_t load(const std::filesystem::path& path);

 private:
  std::vector<uint32_t> seeds_;
  std::unique_ptr<TextStore> texts_;
  std::deque<std::string> ids_;
  std::unordered_set<std::string_view> known_ids_;  // into ids_
  std::vector<uint32_t> fingerprints_;              // [documents, seeds]
};

}  // namespace megatron::corpus
