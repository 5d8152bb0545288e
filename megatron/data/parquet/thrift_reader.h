#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace megatron {

// Reads the compact protocol of Apache Thrift, the encoding of Parquet's metadata. Throws
// FormatError, without the file's name, for invalid bytes.
class ThriftReader {
 public:
  explicit ThriftReader(std::string_view bytes) : bytes_(bytes) {}

  // Bytes read so far.
  size_t position() const { return at_; }

  // Calls f(id) for the fields of a structure; f reads the value by one of the functions below and
  // returns true, or returns false to skip it.
  template <class F>
  void read_struct(F&& f) {
    const Nested nested(*this);
    int64_t id = 0;
    while (begin_field(id)) {
      const int type = type_;
      if (!f(id)) skip(type);
    }
  }
  // Calls f() for each element of a list; f reads it.
  template <class F>
  void read_list(F&& f) {
    const Nested nested(*this);
    int element = 0;
    for (int64_t count = begin_list(element); count > 0; --count) {
      type_ = element;
      f();
    }
  }
  int64_t integer();
  bool boolean();
  std::string_view text();

 private:
  // Limit of nesting in hostile files.
  class Nested {
   public:
    explicit Nested(ThriftReader& reader) : reader_(reader) { reader_.enter(); }
    ~Nested() { --reader_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ThriftReader& reader_;
  };

  void enter();
  bool begin_field(int64_t& id);
  int64_t begin_list(int& element);
  void skip(int type);
  uint8_t byte();
  uint64_t varint();
  int64_t zigzag();
  void expect(bool is_right, const char* what) const;

  std::string_view bytes_;
  size_t at_ = 0;
  int type_ = 0;  // of the next value
  int depth_ = 0;
};

}  // namespace megatron
