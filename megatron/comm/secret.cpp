#include "megatron/comm/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

using Lookup = std::function<const char*(const char* name)>;

constexpr size_t kMinLength = 16;
constexpr size_t kMaxLength = 4096;
constexpr const char* kRemedy =
    "set MEGATRON_SECRET to the same text on all hosts (openssl rand -hex 32 makes one), or "
    "MEGATRON_SECRET_FILE to a file with it that only you may read";

std::string hex_of(const std::array<uint8_t, 32>& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string checked(std::string text, const std::string& source) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() >= kMinLength) return text;
  throw ConfigError(fmt::format("the secret of {} has {} characters, {} are needed; {}", source,
                                text.size(), kMinLength, kRemedy));
}

// The text of a file that only its owner may read; none if there is no such file.
std::optional<std::string> read_private(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (file < 0 && errno == ENOENT) return {};
  struct stat status {};
  std::string text(kMaxLength, ' ');
  ssize_t count = -1;
  if (file >= 0 && ::fstat(file, &status) == 0) count = ::read(file, text.data(), text.size());
  const int reason = errno;
  if (file >= 0) ::close(file);
  if (count < 0) {
    throw ConfigError(
        fmt::format("secret file {} cannot be read: {}", path, std::strerror(reason)));
  }
  if ((status.st_mode & 077) != 0) {
    throw ConfigError(
        fmt::format("secret file {} has mode {:03o}: other users may read it; run chmod 600 on it",
                    path, status.st_mode & 0777));
  }
  text.resize(static_cast<size_t>(count));
  return checked(std::move(text), path);
}

// The user's file, created if missing; nothing if it cannot be created. If several processes create
// it concurrently, one wins and all read the same text.
std::optional<std::string> own_file(const std::string& home) {
  const std::string directory = home + "/.megatron";
  const std::string path = directory + "/secret";
  if (std::optional<std::string> text = read_private(path)) return text;
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return {};
  const std::string fresh = path + "." + hex_of(random_bytes()).substr(0, 16);
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return {};
  const std::string text = Secret::random().text() + "\n";
  const bool is_written =
      ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file) == 0;
  ::close(file);
  if (is_written && ::link(fresh.c_str(), path.c_str()) != 0 && errno != EEXIST) {
    ::unlink(fresh.c_str());
    return {};
  }
  ::unlink(fresh.c_str());
  return read_private(path);
}

}  // namespace

Secret Secret::random() { return Secret(hex_of(random_bytes())); }

Secret::Digest Secret::digest(std::string_view message) const {
  Digest result{};
  unsigned int size = result.size();
  const unsigned char* const done = ::HMAC(
      ::EVP_sha256(), text_.data(), static_cast<int>(text_.size()),
      reinterpret_cast<const unsigned char*>(message.data()), message.size(), result.data(), &size);
  invariant(done != nullptr && size == result.size(), "libcrypto computes HMAC-SHA256");
  return result;
}

Secret Secret::derived(std::string_view purpose) const { return Secret(hex_of(digest(purpose))); }

bool is_equal(const Secret::Digest& a, const Secret::Digest& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::array<uint8_t, 32> random_bytes() {
  std::array<uint8_t, 32> bytes{};
  invariant(::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1,
            "the system gives random numbers");
  return bytes;
}

Secret secret_of_job(bool is_one_host, const Lookup& variable) {
  if (const char* const text = variable("MEGATRON_SECRET")) {
    return Secret(checked(text, "MEGATRON_SECRET"));
  }
  if (const char* const path = variable("MEGATRON_SECRET_FILE")) {
    if (std::optional<std::string> text = read_private(path)) return Secret(*std::move(text));
    throw ConfigError(
        fmt::format("MEGATRON_SECRET_FILE {}: there is no such file; {}", path, kRemedy));
  }
  const char* const home = variable("HOME");
  if (home != nullptr && *home == '/') {
    if (std::optional<std::string> text = own_file(home)) return Secret(*std::move(text));
  }
  if (is_one_host) return {};
  throw ConfigError(fmt::format(
      "ranks on several hosts need a secret, and {}; {}",
      home == nullptr ? "HOME is not set" : fmt::format("{}/.megatron cannot be written", home),
      kRemedy));
}

Secret secret_of_job(bool is_one_host) {
  return secret_of_job(is_one_host, [](const char* name) { return std::getenv(name); });
}

}  // namespace megatron::comm
