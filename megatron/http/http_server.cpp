#include "megatron/http/http_server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/core/printable.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 1024;
constexpr size_t kMaxRequestsOfConnection = 1000;
// The request line and the headers, which become more than 100 bytes each.
constexpr int64_t kMaxHeadBytes = 32 << 10;
constexpr int64_t kMaxHeadLines = 128;
// Overhead of a chunked body: the sizes of chunks.
constexpr int64_t kMaxFramingBytes = 256 << 10;
// Time for a client to read the error response before its connection is closed.
constexpr std::chrono::seconds kRefusalTime(1);
// Maximum connections being closed gracefully; further ones are closed without a response.
constexpr size_t kMaxRefusals = 4096;

std::string too_many_connections() {
  const std::string body =
      "{\"error\":{\"message\":\"too many connections; try again later\","
      "\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"overloaded\"}}\n";
  return fmt::format(
      "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
}

bool poll_until(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

void name_of_peer(const sockaddr_storage& address, socklen_t size, std::string& ip, int& port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                    service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  ip = host.data();
  port = std::atoi(service.data());
}

}  // namespace

// A client's connection and the thread that serves it.
struct HttpServer::Client {
  socket_t socket;
  bool is_evicted = false;  // it has given its place to another
  std::thread thread{};
};

// Clients that wait for their first request, or for the rest of a request. When all places are
// taken, the one that has waited longest gives its place to a new connection.
class HttpServer::PendingRequests {
 public:
  // Answers the client that has waited longest with 429; its thread wakes. False if none waits.
  bool evict_oldest() {
    const std::lock_guard lock(mutex_);
    const auto oldest = std::find_if(clients_.begin(), clients_.end(),
                                     [](const auto& one) { return !one.second->is_evicted; });
    if (oldest == clients_.end()) return false;
    oldest->second->is_evicted = true;
    const socket_t socket = oldest->second->socket;
    const std::string answer = too_many_connections();
    ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(socket, SHUT_RDWR);
    return true;
  }

 private:
  friend class PendingRequest;
  std::mutex mutex_;                                   // of is_evicted, too
  std::multimap<Clock::time_point, Client*> clients_;  // by the time at which each began to wait
};

// While it lives, its connection waits.
class HttpServer::PendingRequest {
 public:
  PendingRequest(PendingRequests& requests, Clock::time_point began, Client& client)
      : requests_(requests) {
    const std::lock_guard lock(requests_.mutex_);
    entry_ = requests_.clients_.emplace(began, &client);
  }
  ~PendingRequest() {
    const std::lock_guard lock(requests_.mutex_);
    requests_.clients_.erase(entry_);
  }
  PendingRequest(const PendingRequest&) = delete;
  PendingRequest& operator=(const PendingRequest&) = delete;

  bool is_evicted() const {
    const std::lock_guard lock(requests_.mutex_);
    return entry_->second->is_evicted;
  }

 private:
  PendingRequests& requests_;
  std::multimap<Clock::time_point, Client*>::iterator entry_;
};

// A socket whose reads share one deadline.
class HttpServer::Connection final : public httplib::Stream {
 public:
  Connection(Client& client, const HttpLimits& limits, ByteBudget& memory,
             PendingRequests& requests, std::unique_ptr<PendingRequest> pending)
      : client_(client),
        fd_(client.socket),
        limits_(limits),
        requests_(requests),
        pending_(std::move(pending)),
        memory_(memory) {}
  ~Connection() override { end_memory(); }

  // Waits for the first byte of a request, until the connection has been idle too long.
  bool has_request(const std::atomic<bool>& is_ending) {
    const auto idle_until = Clock::now() + limits_.idle_time;
    read_until_ = idle_until;
    head_ = {};
    num_body_bytes_ = 0;
    is_out_of_memory_ = false;
    end_memory();
    while (begin_ == end_ && !is_ending) {
      const auto slice = std::min(idle_until, Clock::now() + std::chrono::milliseconds(100));
      if (is_first_request_ ? receive(slice) : poll_until(fd_, POLLIN, slice) && fill()) break;
      if (is_closed_ || Clock::now() >= idle_until) return false;
    }
    if (!std::exchange(is_first_request_, false)) request_began_ = Clock::now();
    read_until_ = Clock::now() + limits_.request_time;
    return begin_ != end_;
  }

  bool is_gone() const {
    char byte = 0;
    const ssize_t count = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  bool is_readable() const override {
    return begin_ != end_ || poll_until(fd_, POLLIN, read_until_);
  }
  bool is_writable() const override {
    return poll_until(fd_, POLLOUT, Clock::now() + limits_.write_time) && !is_gone();
  }
  ssize_t read(char* to, size_t size) override {
    if (begin_ == end_ && !receive(read_until_)) {
      pending_.reset();  // an answer may follow
      return -1;
    }
    const size_t count = std::min(size, end_ - begin_);
    if (!is_allowed({buffer_.data() + begin_, count})) return -1;
    std::copy_n(buffer_.data() + begin_, count, to);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, size_t size) override {
    const auto deadline = Clock::now() + limits_.write_time;
    size_t sent = 0;
    while (sent < size) {
      const ssize_t count = ::send(fd_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) {
        sent += static_cast<size_t>(count);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
        if (!poll_until(fd_, POLLOUT, deadline)) return -1;
      } else {
        return -1;
      }
    }
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      name_of_peer(address, size, ip, port);
    }
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      name_of_peer(address, size, ip, port);
    }
  }
  socket_t socket() const override { return fd_; }

  // Announces a body of so many bytes.
  void expect_body(int64_t bytes) { take_memory(std::min(bytes, limits_.max_body_bytes)); }
  void give_memory_back() {
    // A growing string may occupy twice its bytes.
    memory_.shrink_to(2 * counted(num_body_bytes_));
  }
  bool is_out_of_memory() const { return is_out_of_memory_; }

 private:
  // The part of a request before the empty line.
  struct Head {
    int64_t bytes = 0;
    int64_t lines = 0;
    int end = 0;  // how many characters of \n\r\n, which ends it, came last
    bool is_over() const { return end == 3; }
    void take(char c) {
      ++bytes;
      lines += c == '\n' ? 1 : 0;
      if (c == '\n') {
        end = end == 2 ? 3 : 1;
      } else {
        end = c == '\r' && end == 1 ? 2 : 0;
      }
    }
  };

  // Returns the memory freed by a large request to the system; otherwise each thread's heap keeps
  // some.
  void end_memory() {
    constexpr int64_t kLarge = int64_t{8} << 20;
    if (std::exchange(most_memory_, 0) >= kLarge) ::malloc_trim(0);
    memory_.shrink_to(0);
  }

  static int64_t counted(int64_t body_bytes) {
    return std::max<int64_t>(0, body_bytes - HttpLimits::kFreeBodyBytes);
  }
  void take_memory(int64_t body_bytes) {
    if (!memory_.grow_to(counted(body_bytes) * HttpLimits::kMemoryOfByte)) is_out_of_memory_ = true;
    most_memory_ = std::max(most_memory_, memory_.held());
  }

  // Counts bytes before the library gets them.
  bool is_allowed(std::string_view bytes) {
    size_t at = 0;
    while (at < bytes.size() && !head_.is_over()) head_.take(bytes[at++]);
    num_body_bytes_ += static_cast<int64_t>(bytes.size() - at);
    if (head_.bytes > kMaxHeadBytes || head_.lines > kMaxHeadLines ||
        num_body_bytes_ > limits_.max_body_bytes + kMaxFramingBytes) {
      return false;
    }
    take_memory(num_body_bytes_);
    return !is_out_of_memory_;
  }

  // Waits for bytes of an unfinished request; meanwhile the connection may lose its place.
  bool receive(Clock::time_point deadline) {
    if (pending_ == nullptr) {
      if (poll_until(fd_, POLLIN, Clock::now())) return fill();
      pending_ = std::make_unique<PendingRequest>(requests_, request_began_, client_);
    }
    const bool is_ready = poll_until(fd_, POLLIN, deadline);
    is_closed_ = pending_->is_evicted();
    if (is_ready || is_closed_) pending_.reset();
    return is_ready && !is_closed_ && fill();
  }
  bool fill() {
    const ssize_t count = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
    begin_ = 0;
    end_ = count > 0 ? static_cast<size_t>(count) : 0;
    is_closed_ = count <= 0;
    return count > 0;
  }

  Client& client_;
  socket_t fd_;
  const HttpLimits& limits_;
  PendingRequests& requests_;
  std::unique_ptr<PendingRequest> pending_;
  bool is_first_request_ = true;
  bool is_closed_ = false;  // by its client, or because another connection has its place
  Clock::time_point request_began_ = Clock::now();
  Clock::time_point read_until_;
  Head head_;  // of this request
  int64_t num_body_bytes_ = 0;
  BudgetShare memory_;
  int64_t most_memory_ = 0;  // of this request
  bool is_out_of_memory_ = false;
  std::array<char, 8192> buffer_{};
  size_t begin_ = 0;
  size_t end_ = 0;
};

namespace {

// The connection that this thread serves. The library calls handlers on the connection's thread,
// but passes them only the request.
struct ServedConnection {
  std::function<bool()> is_client_gone;
  std::mutex* large_body = nullptr;
  std::function<void()> give_memory_back;
  std::function<bool()> is_out_of_memory;
  bool must_close = false;  // a part of the request was not read
};
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): see above
thread_local ServedConnection served;

// Closes a connection whose client may still send (lingering close). Closing a socket with unread
// bytes would reset the connection and discard the response.
void end_politely(int socket) {
  ::shutdown(socket, SHUT_WR);
  std::array<char, 4096> unread{};
  const auto deadline = Clock::now() + kRefusalTime;
  while (poll_until(socket, POLLIN, deadline) &&
         ::recv(socket, unread.data(), unread.size(), 0) > 0) {
  }
}

}  // namespace

// Connections beyond the limit. They get their response immediately; a thread then does a lingering
// close, because closing a socket with unread bytes would discard the response.
class HttpServer::Refusals {
 public:
  Refusals() : thread_([this] { run(); }) {}
  ~Refusals() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    has_more_.notify_all();
    thread_.join();
  }
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  // Sends the response, and closes the socket later.
  void take(int socket) {
    const std::string answer = too_many_connections();
    ::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ::shutdown(socket, SHUT_WR);
    const std::lock_guard lock(mutex_);
    if (endings_.size() >= kMaxRefusals) {
      ::close(socket);
      return;
    }
    endings_.push_back({socket, Clock::now() + kRefusalTime});
    has_more_.notify_all();
  }

 private:
  struct Ending {
    int socket;
    Clock::time_point deadline;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!ends_) {
      has_more_.wait(lock, [&] { return ends_ || !endings_.empty(); });
      std::vector<pollfd> entries;
      for (const Ending& one : endings_) entries.push_back({one.socket, POLLIN, 0});
      lock.unlock();
      ::poll(entries.data(), entries.size(), 20);  // more sockets may be taken meanwhile
      lock.lock();
      const auto now = Clock::now();
      std::erase_if(endings_, [&](const Ending& one) {
        if (!ends_ && !has_ended(one.socket) && now < one.deadline) return false;
        ::close(one.socket);
        return true;
      });
    }
  }
  // Reads and discards data from the client; true at the end of the data.
  static bool has_ended(int socket) {
    std::array<char, 4096> unread{};
    for (int i = 0; i < 16; ++i) {
      const ssize_t count = ::recv(socket, unread.data(), unread.size(), MSG_DONTWAIT);
      if (count > 0) continue;
      return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    }
    return false;
  }

  std::mutex mutex_;
  std::condition_variable has_more_;
  std::vector<Ending> endings_;
  bool ends_ = false;
  std::thread thread_;
};

// A thread for each connection, up to a number of them. Ended threads are joined when the next
// connection arrives: pthread_detach() of glibc 2.36 may read a thread that has already ended.
class HttpServer::Threads final : public httplib::TaskQueue {
 public:
  explicit Threads(HttpServer& server) : server_(server) {}

  void enqueue(std::function<void()> work) override { work(); }  // calls take()
  void take(socket_t socket) {
    join_ended();
    if (!has_place() || !start(socket)) server_.refusals_->take(socket);
  }
  void shutdown() override {
    {
      std::unique_lock lock(mutex_);
      is_done_.wait(lock, [&] { return running_.empty(); });
    }
    join_ended();
  }

 private:
  using Place = std::list<Client>::iterator;

  // An evicted client has no place any more, though its thread may take a while to end.
  bool has_place() {
    if (server_.num_connections_ < server_.limits_.max_connections) return true;
    if (!server_.pending_->evict_oldest()) return false;
    --server_.num_connections_;
    return true;
  }
  // False if the system has no thread left.
  bool start(socket_t socket) {
    const std::lock_guard lock(mutex_);  // the thread finds itself in the list when it ends
    const Place place = running_.emplace(running_.end(), Client{.socket = socket});
    try {
      auto pending = std::make_unique<PendingRequest>(*server_.pending_, Clock::now(), *place);
      place->thread = std::thread([this, place, pending = std::move(pending)]() mutable {
        server_.serve_and_close(*place, std::move(pending));
        end(place);
      });
    } catch (const std::system_error&) {
      running_.erase(place);
      return false;
    }
    ++server_.num_connections_;
    return true;
  }
  // Called last by a thread.
  void end(Place place) {
    const std::lock_guard lock(mutex_);
    if (!place->is_evicted) --server_.num_connections_;
    ended_.splice(ended_.end(), running_, place);
    is_done_.notify_all();
  }
  void join_ended() {
    std::list<Client> ended;
    {
      const std::lock_guard lock(mutex_);
      ended.swap(ended_);
    }
    for (Client& client : ended) client.thread.join();
  }

  HttpServer& server_;
  std::mutex mutex_;
  std::condition_variable is_done_;
  std::list<Client> running_;
  std::list<Client> ended_;
};

HttpServer::HttpServer(const HttpLimits& limits)
    : limits_(limits),
      memory_(limits.max_request_memory > 0 ? limits.max_request_memory
                                            : 16 * limits.max_body_bytes),
      refusals_(std::make_unique<Refusals>()),
      pending_(std::make_unique<PendingRequests>()) {
  new_task_queue = [this] { return threads_ = new Threads(*this); };
  set_payload_max_length(static_cast<size_t>(limits.max_body_bytes));
  set_tcp_nodelay(true);
  // The library's default, SO_REUSEPORT, lets two servers share a port.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // The Connection and Keep-Alive headers of responses.
  set_keep_alive_max_count(kMaxRequestsOfConnection);
  set_keep_alive_timeout(
      std::chrono::duration_cast<std::chrono::seconds>(limits.idle_time).count());
}

HttpServer::~HttpServer() = default;

int HttpServer::bind(const std::string& host, int port) {
  const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
  if (bound <= 0) {
    throw ConfigError(fmt::format(
        "--host {} --port {}: cannot listen there; is another server running? Choose another "
        "--port, or --port 0 for any free one",
        host, port));
  }
  ::listen(svr_sock_, kBacklog);
  return bound;
}

void HttpServer::end() {
  is_ending_ = true;
  stop();
}

bool HttpServer::has_body(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         (request.has_header("Content-Length") &&
          request.get_header_value("Content-Length") != "0");
}

void HttpServer::close_after(httplib::Response& response) {
  served.must_close = true;
  response.set_header("Connection", "close");
}

bool HttpServer::client_is_gone() { return served.is_client_gone && served.is_client_gone(); }

std::unique_lock<std::mutex> HttpServer::turn(const std::string& body) {
  const bool is_large = static_cast<int64_t>(body.size()) > HttpLimits::kFreeBodyBytes;
  if (!is_large || served.large_body == nullptr) return {};
  return std::unique_lock(*served.large_body);
}

void HttpServer::give_memory_back() {
  if (served.give_memory_back) served.give_memory_back();
}

bool HttpServer::is_out_of_memory() { return served.is_out_of_memory && served.is_out_of_memory(); }

bool HttpServer::process_and_close_socket(socket_t socket) {  // on the thread that accepts
  threads_->take(socket);
  return true;
}

void HttpServer::serve_and_close(Client& client, std::unique_ptr<PendingRequest> pending) {
  try {
    serve(client, std::move(pending));
  } catch (const std::exception& error) {  // of the library, outside of all handlers
    warn(fmt::format("a connection ends: {}", printable(error.what())));
  }
  served = {};
  ::shutdown(client.socket, SHUT_RDWR);
  ::close(client.socket);
}

void HttpServer::serve(Client& client, std::unique_ptr<PendingRequest> pending) {
  Connection connection(client, limits_, memory_, *pending_, std::move(pending));
  served.is_client_gone = [&] { return connection.is_gone(); };
  served.large_body = &large_body_;
  served.give_memory_back = [&] { connection.give_memory_back(); };
  served.is_out_of_memory = [&] { return connection.is_out_of_memory(); };
  for (size_t left = kMaxRequestsOfConnection; left > 0 && connection.has_request(is_ending_);
       --left) {
    const bool is_last = left == 1 || is_ending_;
    bool is_closed = false;
    // Disabled: compressed streams delay text, compressed bodies may be decompression bombs, and
    // many ranges of a response would be many copies of it.
    const auto simplify = [&](httplib::Request& request) {
      connection.expect_body(integer_of(request.get_header_value("Content-Length")).value_or(0));
      request.headers.erase("Accept-Encoding");
      request.headers.erase("Content-Encoding");
      request.headers.erase("Range");
      request.ranges.clear();
    };
    const bool is_whole = process_request(connection, is_last, is_closed, simplify);
    if (!is_whole || is_closed || is_last || served.must_close) break;
  }
  if (served.must_close) end_politely(client.socket);
}

std::optional<std::string> access_problem(const WebAccess& access,
                                          const httplib::Request& request) {
  if (request.get_header_value_count("Host") > 1 || request.get_header_value_count("Origin") > 1) {
    return "the request has several headers Host or Origin; send one";
  }
  return access.problem(request.get_header_value("Host"), request.get_header_value("Origin"));
}

}  // namespace megatron
