#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace megatron::comm {

// A secret shared by the ranks and hosts of a job. Both ends of a connection prove that they know
// it (tcp/channel.h); it is never sent itself.
class Secret {
 public:
  using Digest = std::array<uint8_t, 32>;

  // The empty secret: no authentication.
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}
  // 32 random bytes from the system.
  static Secret random();

  // The value of MEGATRON_SECRET.
  const std::string& text() const { return text_; }
  bool is_empty() const { return text_.empty(); }
  // HMAC-SHA256 of a message (RFC 2104, FIPS 180-4).
  Digest digest(std::string_view message) const;
  // A secret for one purpose. It does not reveal this one.
  Secret derived(std::string_view purpose) const;

 private:
  std::string text_;
};

// Compares in constant time.
bool is_equal(const Secret::Digest& a, const Secret::Digest& b);
// Unpredictable bytes.
std::array<uint8_t, 32> random_bytes();

// The secret of this job: MEGATRON_SECRET, the content of the file MEGATRON_SECRET_FILE, or the
// content of ~/.megatron/secret, which the first process creates with mode 0600. Without a home
// directory, ranks that are all on this host work without a secret. `variable` is getenv.
//
// Throws ConfigError for a secret of less than 16 characters, a file that other users may read, and
// ranks on several hosts without a secret.
Secret secret_of_job(bool is_one_host,
                     const std::function<const char*(const char* name)>& variable);
Secret secret_of_job(bool is_one_host);

}  // namespace megatron::comm
