#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::comm::tcp {

// Encodes numbers and texts as bytes, for records of a Channel.
class RecordWriter {
 public:
  void number(uint64_t value) {
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 255u);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Decodes them. Reading past the end of a record yields zeros and empty texts, and is_good()
// becomes false.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : left_(bytes) {}

  uint64_t number() {
    uint64_t value = 0;
    const std::string_view bytes = take(8);
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return value;
  }
  std::string_view text() { return take(number()); }
  // The number of following items, each of at least `item_bytes`.
  uint64_t count(uint64_t item_bytes) {
    const uint64_t value = number();
    if (value <= left_.size() / item_bytes) return value;
    is_good_ = false;
    return 0;
  }
  // True if no read went past the end.
  bool is_good() const { return is_good_; }
  bool is_at_end() const { return left_.empty(); }

 private:
  std::string_view take(uint64_t count) {
    if (count > left_.size()) {
      is_good_ = false;
      return left_ = {};
    }
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }

  std::string_view left_;
  bool is_good_ = true;
};

}  // namespace megatron::comm::tcp
