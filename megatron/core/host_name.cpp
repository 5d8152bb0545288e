#include "megatron/core/host_name.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>

namespace megatron {
namespace {

bool is_same_address(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    sockaddr_in x = {};
    sockaddr_in y = {};
    std::memcpy(&x, a, sizeof x);
    std::memcpy(&y, b, sizeof y);
    return x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  if (a->sa_family != AF_INET6) return false;
  sockaddr_in6 x = {};
  sockaddr_in6 y = {};
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  return std::memcmp(&x.sin6_addr, &y.sin6_addr, sizeof x.sin6_addr) == 0;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == host_name()) return true;
  addrinfo* resolved = nullptr;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &resolved) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(resolved, &::freeaddrinfo);
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> own(interfaces, &::freeifaddrs);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    for (const ifaddrs* one = own.get(); one != nullptr; one = one->ifa_next) {
      if (is_same_address(address->ai_addr, one->ifa_addr)) return true;
    }
  }
  return false;
}

}  // namespace megatron
