#include "megatron/formats/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

// Records of a zip archive, all little-endian (PKWARE's APPNOTE 6.3.3, sections 4.3.7 to 4.3.16).
constexpr uint32_t kLocalMagic = 0x04034b50;
constexpr uint32_t kCentralMagic = 0x02014b50;
constexpr uint32_t kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50;
constexpr uint32_t kLocator64Magic = 0x07064b50;
constexpr uint32_t kDescriptorMagic = 0x08074b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kMaxComment = 65535;

constexpr uint16_t kEncrypted = 0x0001;
constexpr uint16_t kStore = 0;
constexpr uint16_t kDeflate = 8;
// Checksum and sizes follow the data; the name is UTF-8. The same flags as PyTorch.
constexpr uint16_t kFlags = 0x0808;
constexpr uint16_t kZip64Field = 0x0001;
constexpr uint16_t kPaddingField = 0x4246;  // "FB", PyTorch's
constexpr uint16_t kDate = 0x21;            // 1 January 1980, the earliest possible date
constexpr uint64_t kAlignment = 64;
constexpr size_t kZipBlockBytes = size_t{1} << 20;
constexpr uint32_t kIn64 = 0xffffffff;  // marks a number in the zip64 field

class Bytes {
 public:
  Bytes(std::span<const std::byte> bytes, const std::filesystem::path& path)
      : bytes_(bytes), path_(path) {}

  [[noreturn]] void fail(uint64_t offset, const std::string& what) const {
    throw FormatError(fmt::format("{}: byte {}: {}", path_.string(), offset, what));
  }
  std::span<const std::byte> at(uint64_t offset, uint64_t count) const {
    if (offset > bytes_.size() || count > bytes_.size() - offset) {
      fail(offset, fmt::format("needs {} bytes, but the file ends at {}", count, bytes_.size()));
    }
    return bytes_.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
  }
  template <class T>
  T number(uint64_t offset) const {
    T value;
    std::memcpy(&value, at(offset, sizeof(T)).data(), sizeof(T));
    return value;
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  const std::filesystem::path& path_;
};

struct Directory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

Directory find_directory(const Bytes& file) {
  if (file.size() < kEndBytes) file.fail(0, "the file is too short for a zip archive");
  uint64_t end = file.size() - kEndBytes;
  const uint64_t lowest = end > kMaxComment ? end - kMaxComment : 0;
  while (file.number<uint32_t>(end) != kEndMagic) {
    if (end == lowest)
      file.fail(end, "the end of the zip archive is missing; the file is truncated");
    --end;
  }
  if (end >= kLocator64Bytes && file.number<uint32_t>(end - kLocator64Bytes) == kLocator64Magic) {
    const auto end64 = file.number<uint64_t>(end - kLocator64Bytes + 8);
    if (file.number<uint32_t>(end64) != kEnd64Magic) file.fail(end64, "is not a zip64 end record");
    return {file.number<uint64_t>(end64 + 48), file.number<uint64_t>(end64 + 40),
            file.number<uint64_t>(end64 + 32)};
  }
  return {file.number<uint32_t>(end + 16), file.number<uint32_t>(end + 12),
          file.number<uint16_t>(end + 10)};
}

// A relative path below the archive's own folder.
bool is_safe_name(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find('\\') != std::string_view::npos ||
      name.find('\0') != std::string_view::npos) {
    return false;
  }
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return false;
    begin = end + 1;
  }
  return true;
}

// Reads the 64-bit values of those `fields` that are marked, in order.
void read_zip64(const Bytes& file, uint64_t begin, uint64_t bytes,
                std::span<uint64_t* const> fields) {
  uint64_t at = begin;
  while (at + 4 <= begin + bytes) {
    const auto id = file.number<uint16_t>(at);
    const auto size = file.number<uint16_t>(at + 2);
    if (id == kZip64Field) {
      uint64_t value = at + 4;
      for (uint64_t* field : fields) {
        if (*field != kIn64) continue;
        if (value + 8 > at + 4 + size) file.fail(at, "the zip64 field is too short");
        *field = file.number<uint64_t>(value);
        value += 8;
      }
      return;
    }
    at += 4 + uint64_t{size};
  }
}

ZipEntry read_entry(const Bytes& file, const std::filesystem::path& path, ZipContent content,
                    uint64_t& at) {
  if (file.number<uint32_t>(at) != kCentralMagic) file.fail(at, "is not an entry of the directory");
  const auto flags = file.number<uint16_t>(at + 8);
  const auto method = file.number<uint16_t>(at + 10);
  const auto name_bytes = file.number<uint16_t>(at + 28);
  const auto extra_bytes = file.number<uint16_t>(at + 30);
  const auto comment_bytes = file.number<uint16_t>(at + 32);
  uint64_t packed = file.number<uint32_t>(at + 20);
  uint64_t size = file.number<uint32_t>(at + 24);
  uint64_t local = file.number<uint32_t>(at + 42);
  const auto raw_name = file.at(at + kCentralBytes, name_bytes);

  ZipEntry entry;
  entry.name.assign(reinterpret_cast<const char*>(raw_name.data()), raw_name.size());
  entry.crc = file.number<uint32_t>(at + 16);
  uint64_t* const fields[] = {&size, &packed, &local};
  read_zip64(file, at + kCentralBytes + name_bytes, extra_bytes, fields);
  if (!is_safe_name(entry.name)) {
    file.fail(at, fmt::format("the entry \"{}\" leaves the archive's folder", entry.name));
  }
  entry.size = size;
  entry.is_deflated = method == kDeflate && content == ZipContent::kStoredOrDeflated;
  if ((method != kStore && !entry.is_deflated) || (flags & kEncrypted) != 0) {
    throw Unsupported(fmt::format(
        "{}: the entry {} is compressed or encrypted; unpack the archive and pack it again with "
        "zip -0",
        path.string(), entry.name));
  }
  if (packed != size && !entry.is_deflated)
    file.fail(at, fmt::format("the entry {} has two sizes", entry.name));
  if (file.number<uint32_t>(local) != kLocalMagic) {
    file.fail(local, fmt::format("is not the header of the entry {}", entry.name));
  }
  // The local header may have another padding than the directory.
  const uint64_t data =
      local + kLocalBytes + file.number<uint16_t>(local + 26) + file.number<uint16_t>(local + 28);
  entry.bytes = file.at(data, packed);
  at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  return entry;
}

class Header {
 public:
  template <class T>
  Header& put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Header& put_text(std::string_view text) {
    text_.append(text);
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

uint32_t low(uint64_t value) { return value >= kIn64 ? kIn64 : static_cast<uint32_t>(value); }

}  // namespace

ZipArchive::ZipArchive(std::span<const std::byte> archive, const std::filesystem::path& path,
                       ZipContent content) {
  const Bytes file(archive, path);
  const Directory directory = find_directory(file);
  file.at(directory.offset, directory.bytes);
  if (directory.entries > directory.bytes / kCentralBytes) {
    file.fail(directory.offset, fmt::format("{} entries do not fit a directory of {} bytes",
                                            directory.entries, directory.bytes));
  }
  uint64_t at = directory.offset;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    entries_.push_back(read_entry(file, path, content, at));
  }

  std::vector<const ZipEntry*> in_order;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!positions_.emplace(entries_[i].name, i).second) {
      file.fail(directory.offset, fmt::format("the entry {} occurs twice", entries_[i].name));
    }
    in_order.push_back(&entries_[i]);
  }
  std::ranges::sort(in_order, {}, [](const ZipEntry* entry) {
    return std::pair(entry->bytes.data(), entry->bytes.size());
  });
  for (size_t i = 1; i < in_order.size(); ++i) {
    const ZipEntry& before = *in_order[i - 1];
    if (before.bytes.data() + before.bytes.size() > in_order[i]->bytes.data()) {
      file.fail(directory.offset,
                fmt::format("the entries {} and {} overlap", before.name, in_order[i]->name));
    }
  }
}

const ZipEntry* ZipArchive::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &entries_[found->second];
}

void ZipWriter::begin(std::string name, uint64_t bytes) {
  end();
  const auto offset = bytes_written();
  const bool is_large = bytes >= kIn64;
  const uint64_t zip64_bytes = is_large ? 20 : 0;
  const uint64_t unpadded = offset + kLocalBytes + name.size() + zip64_bytes + 4;
  const uint64_t padding = (kAlignment - unpadded % kAlignment) % kAlignment;
  Header header;
  header.put(kLocalMagic).put(uint16_t{0}).put(kFlags).put(uint16_t{0}).put(uint16_t{0}).put(kDate);
  header.put(uint32_t{0});  // checksum
  header.put(is_large ? kIn64 : 0u).put(is_large ? kIn64 : 0u);
  header.put(static_cast<uint16_t>(name.size()));
  header.put(static_cast<uint16_t>(zip64_bytes + 4 + padding)).put_text(name);
  if (is_large) {
    header.put(kZip64Field).put(uint16_t{16}).put(uint64_t{0}).put(uint64_t{0});
  }
  header.put(kPaddingField).put(static_cast<uint16_t>(padding));
  header.put_text(std::string(padding, 'Z'));
  file_.write(header.text());
  written_.push_back({std::move(name), offset, bytes, 0});
  missing_ = bytes;
}

void ZipWriter::write(std::span<const std::byte> bytes) {
  invariant(bytes.size() <= missing_, "an entry gets as many bytes as declared");
  missing_ -= bytes.size();
  while (!bytes.empty()) {
    // Writes in blocks that are still in the cache after the checksum.
    const std::span<const std::byte> block = bytes.first(std::min(bytes.size(), kZipBlockBytes));
    written_.back().crc = crc32(block, written_.back().crc);
    file_.write(block);
    bytes = bytes.subspan(block.size());
  }
}

void ZipWriter::add(std::string name, std::string_view text) {
  begin(std::move(name), text.size());
  write(std::as_bytes(std::span(text)));
}

void ZipWriter::end() {
  if (written_.empty()) return;
  invariant(missing_ == 0, "an entry gets as many bytes as declared");
  const Written& entry = written_.back();
  Header descriptor;
  descriptor.put(kDescriptorMagic).put(entry.crc);
  if (entry.bytes >= kIn64) {
    descriptor.put(entry.bytes).put(entry.bytes);
  } else {
    descriptor.put(low(entry.bytes)).put(low(entry.bytes));
  }
  file_.write(descriptor.text());
}

void ZipWriter::commit() {
  end();
  const auto begin = bytes_written();
  for (const Written& entry : written_) {
    Header extra;
    if (entry.bytes >= kIn64) extra.put(entry.bytes).put(entry.bytes);
    if (entry.offset >= kIn64) extra.put(entry.offset);
    const auto extra_bytes = static_cast<uint16_t>(extra.text().size());
    Header header;
    header.put(kCentralMagic).put(uint16_t{0}).put(uint16_t{0}).put(kFlags).put(uint16_t{0});
    header.put(uint16_t{0}).put(kDate).put(entry.crc).put(low(entry.bytes)).put(low(entry.bytes));
    header.put(static_cast<uint16_t>(entry.name.size()));
    header.put(static_cast<uint16_t>(extra_bytes == 0 ? 0 : extra_bytes + 4));
    header.put(uint16_t{0}).put(uint16_t{0}).put(uint16_t{0}).put(uint32_t{0});
    header.put(low(entry.offset)).put_text(entry.name);
    if (extra_bytes > 0) header.put(kZip64Field).put(extra_bytes).put_text(extra.text());
    file_.write(header.text());
  }
  const auto end64 = bytes_written();
  const uint64_t bytes = end64 - begin;
  const auto entries = static_cast<uint64_t>(written_.size());
  Header footer;
  footer.put(kEnd64Magic).put(kEnd64Bytes - 12).put(uint16_t{0x31e}).put(uint16_t{0x2d});
  footer.put(uint32_t{0}).put(uint32_t{0}).put(entries).put(entries).put(bytes).put(begin);
  footer.put(kLocator64Magic).put(uint32_t{0}).put(end64).put(uint32_t{1});
  const auto few = static_cast<uint16_t>(std::min<uint64_t>(entries, 0xffff));
  footer.put(kEndMagic).put(uint16_t{0}).put(uint16_t{0}).put(few).put(few);
  footer.put(low(bytes)).put(low(begin)).put(uint16_t{0});
  file_.write(footer.text());
  if (own_ != nullptr) own_->commit();
}

}  // namespace megatron
