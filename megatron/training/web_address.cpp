#include "megatron/training/web_address.h"

#include <algorithm>

namespace megatron {

std::optional<WebAddress> web_address_of(std::string url) {
  if (!url.starts_with("http://") && !url.starts_with("https://")) return {};
  if (url.find_first_of("@?# \t\n") != std::string::npos) return {};
  const size_t host = url.find("//") + 2;
  while (url.size() > host && url.ends_with('/')) url.pop_back();
  const size_t end = std::min(url.find('/', host), url.size());
  if (end == host) return {};
  return WebAddress{url.substr(0, end), url.substr(end)};
}

}  // namespace megatron
