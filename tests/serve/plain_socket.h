#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace megatron::serve {

// A plain connection, whose reads end after a minute without a byte.
class PlainSocket {
 public:
  explicit PlainSocket(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    is_open_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~PlainSocket() { ::close(fd_); }
  PlainSocket(const PlainSocket&) = delete;
  PlainSocket& operator=(const PlainSocket&) = delete;

  bool is_open() const { return is_open_; }
  void send(std::string_view text) const { ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Everything until the server closes.
  std::string rest() const {
    std::string text;
    char buffer[4096];
    for (ssize_t count = 0; (count = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  // The next bytes, at most 4096.
  std::string some(size_t most = 4096) const {
    char buffer[4096];
    const ssize_t count = ::recv(fd_, buffer, most, 0);
    return count > 0 ? std::string(buffer, static_cast<size_t>(count)) : "";
  }

 private:
  int fd_;
  bool is_open_ = false;
};

}  // namespace megatron::serve
