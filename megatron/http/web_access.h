#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Access control for browsers, against cross-origin requests and DNS rebinding. Any web page can
// make a browser send requests to this machine, and a foreign name may resolve to its addresses.
// The browser sends both: Host is the name it requests, Origin the page that requests.
struct WebAccess {
  std::string host = "127.0.0.1";  // where the server listens
  // Allowed values of Host besides this machine's names: "gpu.example.org", ".example.org" for all
  // subdomains, "*" for any.
  std::vector<std::string> allowed_hosts = {};
  // Allowed origins: "https://chat.example.org", "*" for any.
  std::vector<std::string> allowed_origins = {};
  std::string remedy = {};  // of a refused request, instead of the server's flags

  // True if a flag allows this origin.
  bool allows_origin(std::string_view origin) const;

  // The reason to refuse a request; nothing if it is allowed.
  //
  // Host must be a name or address of this machine, or one of allowed_hosts. A name without a dot
  // cannot be a public web site: programs may use it, but pages may not. Origin must be absent, the
  // server itself, or one of allowed_origins. Empty texts represent absent headers.
  std::optional<std::string> problem(std::string_view host_header, std::string_view origin) const;

 private:
  bool allows_host(const std::string& name, bool is_page) const;
};

}  // namespace megatron
