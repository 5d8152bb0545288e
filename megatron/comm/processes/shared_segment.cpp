#include "megatron/comm/processes/shared_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "megatron/comm/secret.h"
#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

std::string unpredictable_name() {
  std::string name = "/megatron-";
  for (const uint8_t byte : random_bytes()) name += fmt::format("{:02x}", byte);
  return name;
}

[[noreturn]] void fail(const std::string& what, int number) {
  throw CommError(fmt::format("shared memory: {}: {}", what,
                              std::error_code(number, std::generic_category()).message()));
}

}  // namespace

SharedSegment::SharedSegment(std::string name, int descriptor, int64_t bytes)
    : name_(std::move(name)), bytes_(bytes) {
  void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                            descriptor, 0);
  const int number = errno;
  ::close(descriptor);
  if (data == MAP_FAILED) fail("mmap", number);
  data_ = static_cast<std::byte*>(data);
}

SharedSegment SharedSegment::create(int64_t bytes) {
  const std::string name = unpredictable_name();
  const int descriptor = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, S_IRUSR | S_IWUSR);
  if (descriptor < 0) fail("shm_open", errno);
  // Takes the memory now: with a full /dev/shm, a later access would be fatal.
  if (const int number = ::posix_fallocate(descriptor, 0, bytes); number != 0) {
    ::close(descriptor);
    ::shm_unlink(name.c_str());
    fail(fmt::format("{} bytes in /dev/shm", bytes), number);
  }
  try {
    SharedSegment made(name, descriptor, bytes);
    made.has_name_ = true;
    return made;
  } catch (...) {
    ::shm_unlink(name.c_str());
    throw;
  }
}

SharedSegment SharedSegment::open(const std::string& name, int64_t bytes) {
  const int descriptor = ::shm_open(name.c_str(), O_RDWR, 0);
  if (descriptor < 0) fail("shm_open", errno);
  struct stat found {};
  if (::fstat(descriptor, &found) != 0 || found.st_size != bytes) {
    ::close(descriptor);
    throw CommError(fmt::format("shared memory: {} has not {} bytes", name, bytes));
  }
  return {name, descriptor, bytes};
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : name_(std::move(other.name_)),
      has_name_(std::exchange(other.has_name_, false)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}

SharedSegment::~SharedSegment() {
  remove_name();
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

void SharedSegment::remove_name() noexcept {
  if (std::exchange(has_name_, false)) ::shm_unlink(name_.c_str());
}

}  // namespace megatron::comm
