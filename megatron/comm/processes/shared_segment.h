#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace megatron::comm {

// Shared memory of processes of one host. One process creates it under an unpredictable name that
// only this user can open, the others open it, and the creator removes the name.
class SharedSegment {
 public:
  // Filled with zeros. Throws CommError.
  static SharedSegment create(int64_t bytes);
  // Throws CommError if there is no such segment of that size.
  static SharedSegment open(const std::string& name, int64_t bytes);
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  const std::string& name() const { return name_; }
  // From now on nobody can open it. Processes that have opened it keep access.
  void remove_name() noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Keeps the memory mapped until the process ends.
  void keep() noexcept { data_ = nullptr; }

 private:
  SharedSegment(std::string name, int descriptor, int64_t bytes);

  std::string name_;
  bool has_name_ = false;  // created here, and not removed yet
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace megatron::comm
