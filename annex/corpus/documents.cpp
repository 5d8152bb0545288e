#include "annex/corpus/documents.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron::corpus {
namespace {

class MemoryTexts final : public TextStore {
 public:
  void add(std::string_view text) override { texts_.emplace_back(text); }
  std::string text(int64_t number) const override { return texts_[static_cast<size_t>(number)]; }

 private:
  std::deque<std::string> texts_;
};

class DiskTexts final : public TextStore {
 public:
  explicit DiskTexts(const std::filesystem::path& folder) : path_(folder / "texts.tmp-XXXXXX") {
    std::string name = path_.string();
    descriptor_ = ::mkstemp(name.data());
    if (descriptor_ < 0) fail("cannot create");
    ::unlink(name.c_str());
  }
  ~DiskTexts() override { ::close(descriptor_); }

  void add(std::string_view text) override {
    for (size_t done = 0; done < text.size();) {
      const ssize_t wrote = ::pwrite(descriptor_, text.data() + done, text.size() - done,
                                     ends_.back() + static_cast<int64_t>(done));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) fail("cannot write");
      done += static_cast<size_t>(wrote);
    }
    ends_.push_back(ends_.back() + static_cast<int64_t>(text.size()));
  }

  std::string text(int64_t number) const override {
    const int64_t begin = ends_[static_cast<size_t>(number)];
    std::string text(static_cast<size_t>(ends_[static_cast<size_t>(number) + 1] - begin), '\0');
    for (size_t done = 0; done < text.size();) {
      const ssize_t got = ::pread(descriptor_, text.data() + done, text.size() - done,
                                  begin + static_cast<int64_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail("cannot read");
      done += static_cast<size_t>(got);
    }
    return text;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw IoError(fmt::format("{}: {}: {}; check the disk, or keep the texts in memory",
                              path_.string(), what, std::strerror(errno)));
  }

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::vector<int64_t> ends_ = {0};
};

constexpr std::string_view kMagic = {"MGFP1\0\0\0", 8};

template <class T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}

// Reads the sections of a file one after the other.
class SectionReader {
 public:
  explicit SectionReader(const std::filesystem::path& path) : file_(path) {}

  std::string_view take(int64_t size) {
    const std::span<const std::byte> bytes = file_.bytes();
    if (size < 0 || static_cast<uint64_t>(size) > bytes.size() - place_) {
      throw FormatError(
          fmt::format("{}: offset {}: the file ends too early; make the fingerprints again",
                      file_.path().string(), place_));
    }
    const auto* const begin = reinterpret_cast<const char*>(bytes.data() + place_);
    place_ += static_cast<size_t>(size);
    return {begin, static_cast<size_t>(size)};
  }

  template <class T>
  std::vector<T> take_numbers(int64_t count) {
    const auto limit = static_cast<int64_t>(file_.bytes().size() / sizeof(T));
    const std::string_view raw =
        take(count < 0 || count > limit ? -1 : count * static_cast<int64_t>(sizeof(T)));
    std::vector<T> values(static_cast<size_t>(count));
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }

  size_t place() const { return place_; }

 private:
  MappedFile file_;
  size_t place_ = 0;
};

// The parts of one section that end at `ends`.
std::vector<std::string_view> take_texts(SectionReader& reader, std::span<const int64_t> ends) {
  std::vector<std::string_view> texts;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    texts.push_back(reader.take(end - begin));
    begin = end;
  }
  return texts;
}

}  // namespace

std::unique_ptr<TextStore> texts_in_memory() { return std::make_unique<MemoryTexts>(); }

std::unique_ptr<TextStore> texts_on_disk(const std::filesystem::path& folder) {
  return std::make_unique<DiskTexts>(folder);
}

bool Documents::add(std::string_view id, std::string_view text,
                    std::span<const uint32_t> fingerprint) {
  invariant(fingerprint.size() == seeds_.size(), "a fingerprint has a value for each seed");
  if (known_ids_.contains(id)) return false;
  texts_->add(text);
  known_ids_.insert(ids_.emplace_back(id));
  fingerprints_.insert(fingerprints_.end(), fingerprint.begin(), fingerprint.end());
  return true;
}

void Documents::save(const std::filesystem::path& path, int64_t num_bands) const {
  FileWriter writer(path);
  writer.write(kMagic);
  const std::vector<int64_t> sizes = {static_cast<int64_t>(seeds_.size()), num_bands, size()};
  writer.write(bytes_of<int64_t>(sizes));
  writer.write(bytes_of<uint32_t>(seeds_));
  int64_t end = 0;
  std::vector<int64_t> ends;
  for (const std::string& id : ids_) ends.push_back(end += static_cast<int64_t>(id.size()));
  writer.write(bytes_of<int64_t>(ends));
  end = 0;
  for (int64_t i = 0; i < size(); ++i) {
    ends[static_cast<size_t>(i)] = end += static_cast<int64_t>(text(i).size());
  }
  writer.write(bytes_of<int64_t>(ends));
  writer.write(bytes_of<uint32_t>(fingerprints_));
  for (const std::string& id : ids_) writer.write(id);
  for (int64_t i = 0; i < size(); ++i) writer.write(text(i));
  writer.commit();
}

int64_t Documents::load(const std::filesystem::path& path) {
  SectionReader reader(path);
  if (reader.take(static_cast<int64_t>(kMagic.size())) != kMagic) {
    throw FormatError(
        fmt::format("{}: the file does not begin with MGFP1; give a file of --save-fingerprints",
                    path.string()));
  }
  const std::vector<int64_t> sizes = reader.take_numbers<int64_t>(3);
  if (reader.take_numbers<uint32_t>(sizes[0]) != seeds_) {
    throw ConfigError(fmt::format(
        "{}: its fingerprints have other seeds; give the --num-seeds ({}) and the --seed that made "
        "them, or make them again",
        path.string(), sizes[0]));
  }
  const std::vector<int64_t> id_ends = reader.take_numbers<int64_t>(sizes[2]);
  const std::vector<int64_t> text_ends = reader.take_numbers<int64_t>(sizes[2]);
  const int64_t width = sizes[0];
  const int64_t limit = INT64_MAX / (width + 1);
  const std::vector<uint32_t> fingerprints =
      reader.take_numbers<uint32_t>(sizes[2] > limit ? -1 : sizes[2] * width);
  const std::vector<std::string_view> ids = take_texts(reader, id_ends);
  const std::vector<std::string_view> texts = take_texts(reader, text_ends);
  int64_t known = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<size_t>(width);
    if (!add(ids[i], texts[i], std::span(fingerprints).subspan(i * row, row))) ++known;
  }
  return known;
}

}  // namespace megatron::corpus
