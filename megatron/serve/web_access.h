#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::serve {

// Who may ask from within a browser. Any page that a person opens can make the browser send
// requests to this machine, and a name of a stranger may lead to its addresses. The browser tells
// both: Host is the name that it believes to ask, Origin the page that asks.
struct WebAccess {
  std::string host = "127.0.0.1";  // where the server listens
  // Names for Host beside those of this machine: "gpu.example.org", ".example.org" with all names
  // that end so, "*" for any.
  std::vector<std::string> allowed_hosts = {};
  // Pages of other servers: "https://chat.example.org", "*" for any.
  std::vector<std::string> allowed_origins = {};

  // May a page of this origin ask, because a flag says so?
  bool allows_origin(std::string_view origin) const;

  // Why a request is refused; nothing if it is not.
  //
  // Host must be a name or address of this machine, or one of allowed_hosts. A name without a dot
  // is none of a stranger's web site, so that programs may use it, but pages may not. Origin must
  // be absent, the server itself, or one of allowed_origins. Empty texts stand for absent headers.
  std::optional<std::string> problem(std::string_view host_header, std::string_view origin) const;

 private:
  bool knows_host(const std::string& name, bool is_page) const;
};

}  // namespace megatron::serve
