#include "megatron/formats/unzip.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/zip.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr std::string_view kUnpackedPrefix = "megatron-unpacked-";

// Consumes the content of an entry block by block.
class ContentWriter {
 public:
  ContentWriter(const ZipEntry& entry, const fs::path& archive, const fs::path& target)
      : entry_(entry), archive_(archive), file_(target) {}

  void write(std::span<const std::byte> block) {
    bytes_ += block.size();
    if (bytes_ > entry_.size) fail("is longer than the archive says");
    crc_ = crc32(block, crc_);
    file_.write(block);
  }
  void commit() {
    if (bytes_ != entry_.size) fail("is shorter than the archive says");
    if (crc_ != entry_.crc) fail("does not have its checksum");
    file_.commit();
  }
  [[noreturn]] void fail(const char* what) const {
    throw FormatError(fmt::format("{}: the entry {} {}; the archive is damaged", archive_.string(),
                                  entry_.name, what));
  }

 private:
  const ZipEntry& entry_;
  const fs::path& archive_;
  FileWriter file_;
  uint64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

// A stream of raw deflate.
class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw InternalError("inflateInit2 failed");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void run(std::span<const std::byte> packed, ContentWriter& content) {
    std::vector<std::byte> block(kBlockBytes);
    for (int status = Z_OK; status != Z_STREAM_END;) {
      if (stream_.avail_in == 0 && !packed.empty()) {
        const auto next = packed.first(std::min(packed.size(), kBlockBytes));
        // zlib does not write to its input.
        stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(next.data()));
        stream_.avail_in = static_cast<uInt>(next.size());
        packed = packed.subspan(next.size());
      }
      stream_.next_out = reinterpret_cast<Bytef*>(block.data());
      stream_.avail_out = static_cast<uInt>(block.size());
      status = inflate(&stream_, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END) content.fail("cannot be unpacked");
      content.write(std::span(block).first(block.size() - stream_.avail_out));
    }
  }

 private:
  z_stream stream_ = {};
};

void write_entry(const ZipEntry& entry, const fs::path& archive, const fs::path& target) {
  ContentWriter content(entry, archive, target);
  if (entry.is_deflated) {
    Inflater().run(entry.bytes, content);
  } else {
    content.write(entry.bytes);
  }
  content.commit();
}

int open_directory(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Directories of killed programs are unlocked.
void remove_dead_directories() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(kUnpackedPrefix)) continue;
    const int descriptor = open_directory(entry.path());
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), ignored);
    ::close(descriptor);
  }
}

}  // namespace

bool is_archive_of_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  if (!text.starts_with(kZipMagic)) return false;
  const ZipArchive archive(file.bytes(), path, ZipContent::kStoredOrDeflated);
  return std::ranges::none_of(archive.entries(), [](const ZipEntry& entry) {
    constexpr std::string_view kPickle = "/data.pkl";
    return entry.name.ends_with(kPickle) &&
           entry.name.find('/') + kPickle.size() == entry.name.size();
  });
}

UnpackedArchive::UnpackedArchive(const fs::path& archive) {
  remove_dead_directories();
  make_directory(archive);
  try {
    unpack(archive);
  } catch (...) {
    remove();
    throw;
  }
}

UnpackedArchive::~UnpackedArchive() { remove(); }

void UnpackedArchive::remove() const {
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
  ::close(descriptor_);
}

void UnpackedArchive::make_directory(const fs::path& archive) {
  const fs::path parent = fs::temp_directory_path();
  while (true) {
    std::string pattern = (parent / fmt::format("{}XXXXXX", kUnpackedPrefix)).string();
    if (::mkdtemp(pattern.data()) != nullptr) descriptor_ = open_directory(pattern);
    if (descriptor_ < 0) {
      throw IoError(fmt::format(
          "{}: cannot create a directory there to unpack {}: {}; let TMPDIR name a directory with "
          "space",
          parent.string(), archive.string(), std::generic_category().message(errno)));
    }
    directory_ = pattern;
    // Another program may have removed it as abandoned before it was locked.
    ::flock(descriptor_, LOCK_EX);
    if (is_still_named(descriptor_, directory_)) return;
    ::close(std::exchange(descriptor_, -1));
  }
}

void UnpackedArchive::unpack(const fs::path& archive) const {
  const MappedFile file(archive);
  const ZipArchive content(file.bytes(), archive, ZipContent::kStoredOrDeflated);
  for (const ZipEntry& entry : content.entries()) {
    const fs::path target = directory_ / entry.name;
    const bool is_directory = entry.name.ends_with('/');
    fs::create_directories(is_directory ? target : target.parent_path());
    if (!is_directory) write_entry(entry, archive, target);
  }
}

}  // namespace megatron
