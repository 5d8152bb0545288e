#pragma once

#include <httplib.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace megatron {

// Stands for a web service at a port of this host: notes every request and answers as `answer`
// says.
class WebStandIn {
 public:
  struct Request {
    std::string path = {};
    std::string authorization = {};
    nlohmann::json body = {};  // of a POST; the parameters of a GET
  };
  struct Answer {
    int status = 200;
    nlohmann::json body = nlohmann::json::object();
  };

  explicit WebStandIn(std::function<Answer(const Request&)> answer) : answer_(std::move(answer)) {
    server_.set_tcp_nodelay(true);
    port_ = server_.bind_to_any_port("127.0.0.1");
    const auto handle = [this](const httplib::Request& request, httplib::Response& response) {
      Request noted{request.path, request.get_header_value("Authorization")};
      noted.body = request.method == "GET" ? nlohmann::json(request.params)
                                           : nlohmann::json::parse(request.body);
      const Answer answer = answer_(noted);
      {
        const std::scoped_lock lock(mutex_);
        requests_.push_back(std::move(noted));
      }
      response.status = answer.status;
      response.set_content(answer.body.dump(), "application/json");
      arrived_.notify_all();
    };
    server_.Get(".*", handle);
    server_.Post(".*", handle);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();  // else stop() does nothing
  }
  ~WebStandIn() {
    server_.stop();
    thread_.join();
  }
  WebStandIn(const WebStandIn&) = delete;
  WebStandIn& operator=(const WebStandIn&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Request> requests() const {
    const std::scoped_lock lock(mutex_);
    return requests_;
  }
  // Waits until there are so many requests; false if they do not come.
  bool wait_for(size_t count) const {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, std::chrono::seconds(10),
                             [&] { return requests_.size() >= count; });
  }

 private:
  std::function<Answer(const Request&)> answer_;
  mutable std::mutex mutex_;
  mutable std::condition_variable arrived_;
  std::vector<Request> requests_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace megatron
