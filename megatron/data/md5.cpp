#include "megatron/data/md5.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <memory>

#include "megatron/core/error.h"

namespace megatron {

std::string md5_hex(std::string_view text) {
  // A host in FIPS mode offers no MD5 unless asked for one that is not for security.
  const std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> md5(
      EVP_MD_fetch(nullptr, "MD5", "?fips=no"), &EVP_MD_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (md5 == nullptr ||
      EVP_Digest(text.data(), text.size(), digest.data(), &size, md5.get(), nullptr) != 1) {
    throw Unsupported("OpenSSL's libcrypto of this host offers no MD5, which names index caches");
  }
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace megatron
