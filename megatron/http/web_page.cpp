#include "megatron/http/web_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>

namespace megatron {
namespace {

// "'sha256-...'" of the text between the first `open` and the next `close`; "'none'" without one.
std::string source_of(std::string_view html, std::string_view open, std::string_view close) {
  const size_t begin = html.find(open);
  if (begin == html.npos) return "'none'";
  const std::string_view rest = html.substr(begin + open.size());
  const std::string_view text = rest.substr(0, rest.find(close));
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  std::array<unsigned char, 4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1> base64{};
  EVP_EncodeBlock(base64.data(), hash.data(), static_cast<int>(hash.size()));
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

}  // namespace

WebPage::WebPage(std::string_view html)
    : html_(html),
      policy_(fmt::format("default-src 'none'; script-src {}; style-src {}; img-src data:; "
                          "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                          "frame-ancestors 'none'",
                          source_of(html, "<script>", "</script>"),
                          source_of(html, "<style>", "</style>"))) {}

void WebPage::set(httplib::Response& response) const {
  response.set_header("Content-Security-Policy", policy_);
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_content(html_, "text/html; charset=utf-8");
}

}  // namespace megatron
