#include "megatron/data/parquet/thrift_reader.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// Types of the compact protocol. A boolean field has its value in its type.
constexpr int kStop = 0;
constexpr int kTrue = 1;
constexpr int kFalse = 2;
constexpr int kByte = 3;  // to kInt64: integers, of 16 and 32 bits between them
constexpr int kInt64 = 6;
constexpr int kDouble = 7;
constexpr int kBinary = 8;
constexpr int kList = 9;
constexpr int kSet = 10;
constexpr int kMap = 11;
constexpr int kStruct = 12;

constexpr int kMaxDepth = 32;

}  // namespace

void ThriftReader::expect(bool is_right, const char* what) const {
  if (!is_right) throw FormatError(fmt::format("the description has no {} at byte {}", what, at_));
}

void ThriftReader::enter() {
  ++depth_;
  expect(depth_ <= kMaxDepth, "end of nested structures");
}

uint8_t ThriftReader::byte() {
  expect(at_ < bytes_.size(), "further byte");
  return static_cast<uint8_t>(bytes_[at_++]);
}

uint64_t ThriftReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const uint8_t next = byte();
    value |= static_cast<uint64_t>(next & 0x7f) << shift;
    if ((next & 0x80) == 0) return value;
  }
  expect(false, "number");
  return 0;
}

int64_t ThriftReader::zigzag() {
  const uint64_t value = varint();
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

bool ThriftReader::begin_field(int64_t& id) {
  const uint8_t head = byte();
  type_ = head & 0x0f;
  if (type_ == kStop) return false;
  const int delta = head >> 4;
  id = delta == 0 ? zigzag() : id + delta;
  return true;
}

int64_t ThriftReader::begin_list(int& element) {
  expect(type_ == kList || type_ == kSet, "list");
  const uint8_t head = byte();
  element = head & 0x0f;
  const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
  expect(count <= bytes_.size(), "list of this length");
  return static_cast<int64_t>(count);
}

int64_t ThriftReader::integer() {
  expect(type_ >= kByte && type_ <= kInt64, "integer");
  return type_ == kByte ? static_cast<int8_t>(byte()) : zigzag();
}

bool ThriftReader::boolean() {
  expect(type_ == kTrue || type_ == kFalse, "boolean");
  return type_ == kTrue;
}

std::string_view ThriftReader::text() {
  expect(type_ == kBinary, "text");
  const uint64_t size = varint();
  expect(size <= bytes_.size() - at_, "text of this length");
  at_ += size;
  return bytes_.substr(at_ - size, size);
}

void ThriftReader::skip(int type) {
  type_ = type;
  if (type == kTrue || type == kFalse) return;
  if (type >= kByte && type <= kInt64) {
    integer();
  } else if (type == kDouble) {
    for (int i = 0; i < 8; ++i) byte();
  } else if (type == kBinary) {
    text();
  } else if (type == kList || type == kSet) {
    read_list([&] {
      if (type_ == kTrue || type_ == kFalse) {
        byte();  // in lists a boolean is a byte
      } else {
        skip(type_);
      }
    });
  } else if (type == kStruct) {
    read_struct([](int64_t) { return false; });
  } else {
    expect(type != kMap, "map: Parquet has none");
    expect(false, "value of a known type");
  }
}

}  // namespace megatron
