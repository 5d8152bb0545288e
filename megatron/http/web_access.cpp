#include "megatron/http/web_access.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "megatron/core/host_name.h"
#include "megatron/core/printable.h"

namespace megatron {
namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// "[::1]:5000" -> "::1", "Localhost.:80" -> "localhost".
std::string name_in(std::string_view host) {
  if (host.starts_with('[')) return lower_case(host.substr(1, host.find(']') - 1));
  std::string name = lower_case(host.substr(0, host.find(':')));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

std::string without_port(std::string_view host, std::string_view port) {
  if (host.ends_with(port)) host.remove_suffix(port.size());
  return lower_case(host);
}

enum class Address { kNone, kLoopback, kOther };

Address address_of(const std::string& name) {
  std::array<unsigned char, 16> bytes{};
  if (::inet_pton(AF_INET, name.c_str(), bytes.data()) == 1) {
    return bytes[0] == 127 ? Address::kLoopback : Address::kOther;
  }
  if (::inet_pton(AF_INET6, name.c_str(), bytes.data()) != 1) return Address::kNone;
  const bool is_loopback =
      bytes[15] == 1 && std::all_of(bytes.begin(), bytes.end() - 1, [](auto b) { return b == 0; });
  return is_loopback ? Address::kLoopback : Address::kOther;
}

bool listens_everywhere(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "::";
}

}  // namespace

bool WebAccess::allows_host(const std::string& name, bool is_page) const {
  if (name == name_in(host) || name == "localhost" || name.ends_with(".localhost")) return true;
  // A literal address involves no name resolution, so it is safe from DNS rebinding.
  const Address address = address_of(name);
  if (address == Address::kLoopback) return true;
  if (address == Address::kOther && listens_everywhere(host)) return true;
  if (name == lower_case(host_name())) return true;
  if (!is_page && address == Address::kNone && name.find('.') == std::string::npos) return true;
  return std::ranges::any_of(allowed_hosts, [&](const std::string& allowed) {
    const std::string lower = lower_case(allowed);
    if (lower.starts_with('.')) return name.ends_with(lower) || name == lower.substr(1);
    return lower == "*" || name == name_in(lower);
  });
}

bool WebAccess::allows_origin(std::string_view origin) const {
  return std::ranges::any_of(allowed_origins, [&](const std::string& allowed) {
    return allowed == "*" || lower_case(allowed) == lower_case(origin);
  });
}

std::optional<std::string> WebAccess::problem(std::string_view host_header,
                                              std::string_view origin) const {
  const std::string name = name_in(host_header);
  if (!host_header.empty() && !allows_host(name, !origin.empty())) {
    return fmt::format("the Host {} is not a name of this server; {}", shortened(host_header),
                       remedy.empty()
                           ? fmt::format("if it should be, start the server with --allowed-hosts "
                                         "{}, or with --api-key",
                                         shortened(name))
                           : remedy);
  }
  if (origin.empty() || allows_origin(origin)) return {};
  for (const auto& [scheme, port] : {std::pair{"http://", ":80"}, std::pair{"https://", ":443"}}) {
    const bool is_own = origin.starts_with(scheme) &&
                        without_port(origin.substr(std::string_view(scheme).size()), port) ==
                            without_port(host_header, port);
    if (is_own) return {};
  }
  return fmt::format("pages of {} may not ask this server; {}", shortened(origin),
                     remedy.empty()
                         ? fmt::format("if they may, start it with --cors-allowed-origins {}, or "
                                       "with --api-key",
                                       shortened(origin))
                         : remedy);
}

}  // namespace megatron
