#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace megatron::comm {

// A text that the ranks and hosts of a job know, and nobody else. Both ends of a connection prove
// that they know it (tcp/channel.h); the text itself never travels.
class Secret {
 public:
  using Digest = std::array<uint8_t, 32>;

  // Known to everybody: proves nothing.
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  // 32 bytes from the system's random numbers.
  static Secret random();

  // What MEGATRON_SECRET holds.
  const std::string& text() const { return text_; }
  bool is_empty() const { return text_.empty(); }
  // HMAC-SHA256 of a message (RFC 2104, FIPS 180-4).
  Digest digest(std::string_view message) const;
  // A secret for one purpose: who knows it does not know this one.
  Secret derived(std::string_view purpose) const;

 private:
  std::string text_;
};

// Whether both are equal, in a time that does not depend on where they differ.
bool is_equal(const Secret::Digest& a, const Secret::Digest& b);
// Bytes that nobody can foretell.
std::array<uint8_t, 32> random_bytes();

// The secret of this job: MEGATRON_SECRET, or the content of the file MEGATRON_SECRET_FILE, or that
// of ~/.megatron/secret, which the first process that needs it makes with mode 0600. Ranks that are
// all on this host work without one where there is no home directory. `variable` is getenv.
//
// Throws ConfigError for a secret of less than 16 characters, a file that others may read, and
// ranks on several hosts without a secret.
Secret secret_of_job(bool is_one_host,
                     const std::function<const char*(const char* name)>& variable);
Secret secret_of_job(bool is_one_host);

}  // namespace megatron::comm
