#pragma once

#include <optional>
#include <string>

namespace megatron {

// "https://host:8080/prefix": origin "https://host:8080", prefix "/prefix" or empty.
struct WebAddress {
  std::string origin;
  std::string prefix;
};

// The address of an HTTP or HTTPS service. None for other texts, also for those with a user's name:
// passwords do not belong into flags, which logs repeat.
std::optional<WebAddress> web_address_of(std::string url);

}  // namespace megatron
