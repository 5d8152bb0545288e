#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "megatron/core/error.h"

namespace megatron {

// A request to a web service failed. may_pass: the network or the service may recover, so that the
// same request is worth another try; otherwise the service refuses it.
class WebError : public Error {
 public:
  WebError(const std::string& message, bool may_pass, std::string answer = {})
      : Error(message), may_pass_(may_pass), answer_(std::move(answer)) {}
  bool may_pass() const { return may_pass_; }
  const std::string& answer() const { return answer_; }  // its body, if the service answered

 private:
  bool may_pass_;
  std::string answer_;
};

// Credentials of requests; all empty: none.
struct WebLogin {
  std::string token = {};  // Authorization: Bearer
  std::string user = {};   // Authorization: Basic
  std::string password = {};
};

// A service that is asked and answers in JSON over HTTP or HTTPS. Certificates are checked with
// those of the system, or of OpenSSL's variable SSL_CERT_FILE. A request takes at most 5 s to
// connect and 15 s to be answered. Used by one thread at a time.
class WebService {
 public:
  // Throws WebError if `url` is no address (web_address_of).
  WebService(const std::string& url, const WebLogin& login);
  ~WebService();

  // The response to a POST of `body`. Throws WebError; the message has the address.
  nlohmann::json post(const std::string& path, const nlohmann::json& body);
  // The response to a GET with one parameter.
  nlohmann::json get(const std::string& path, const std::string& name, const std::string& value);

  const std::string& url() const { return url_; }  // without a slash at its end

 private:
  struct Client;

  std::string url_;
  std::unique_ptr<Client> client_;
};

}  // namespace megatron
