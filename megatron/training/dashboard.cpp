#include "megatron/training/dashboard.h"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/http/http_server.h"
#include "megatron/http/web_page.h"
#include "megatron/report/page.h"
#include "megatron/report/run_history.h"

namespace megatron {

class Dashboard::Site {
 public:
  explicit Site(const Description& description)
      : http_({.max_connections = 64, .max_body_bytes = 1 << 10}),
        access_{.host = description.host,
                .remedy = "ask for 127.0.0.1 or localhost, as through ssh -L"},
        page_(report::live_page_of(description.name)),
        name_(description.name),
        started_(std::chrono::system_clock::now().time_since_epoch().count()) {
    for (const auto& [name, value] : description.settings) {
      history_.settings[name] = text_of(value);
    }
    http_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          if (HttpServer::has_body(request)) HttpServer::close_after(response);
          const auto problem = access_problem(access_, request);
          if (!problem) return httplib::Server::HandlerResponse::Unhandled;
          response.status = 403;
          response.set_content(*problem, "text/plain; charset=utf-8");
          return httplib::Server::HandlerResponse::Handled;
        });
    http_.Get(
        "/", [this](const httplib::Request&, httplib::Response& response) { page_.set(response); });
    http_.Get("/run.json", [this](const httplib::Request& request, httplib::Response& response) {
      response.set_header("Cache-Control", "no-store");
      response.set_header("X-Content-Type-Options", "nosniff");
      response.set_content(data(request.get_param_value("id"), request.get_param_value("after")),
                           "application/json");
    });
    try {
      port_ = http_.bind(description.host, static_cast<int>(description.port));
    } catch (const ConfigError&) {
      throw IoError(
          fmt::format("--dashboard-port {}: cannot listen on {}; is another run or server there?",
                      description.port, description.host));
    }
    listener_ = std::thread([this] { http_.listen_after_bind(); });
    while (!http_.is_running()) std::this_thread::yield();
  }

  ~Site() {
    http_.end();
    listener_.join();
  }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  int port() const { return port_; }

  void write(int64_t iteration, const NamedValues& values) {
    constexpr size_t kMostQueued = 1000;
    size_t queued = 0;
    {
      const std::lock_guard lock(queue_mutex_);
      queue_.push_back({iteration, values});
      queued = queue_.size();
    }
    // Nobody looks at the page: the queue must not grow.
    if (queued <= kMostQueued) return;
    const std::unique_lock lock(history_mutex_, std::try_to_lock);
    if (lock) take_queue();
  }

 private:
  struct Record {
    int64_t iteration = 0;
    NamedValues values;
  };

  // REQUIRES: history_mutex_ is locked.
  void take_queue() {
    constexpr size_t kMostPoints = 3000;  // of a curve: a screen has no more columns
    std::vector<Record> records;
    {
      const std::lock_guard lock(queue_mutex_);
      records.swap(queue_);
    }
    for (const Record& record : records) {
      history_.begin_record(record.iteration);
      for (const auto& [name, value] : record.values) history_.add(name, value);
    }
    history_.thin(kMostPoints);
  }

  // The data of the page, without what it has if it is of this run.
  std::string data(const std::string& known_id, const std::string& known_iteration) {
    const std::lock_guard lock(history_mutex_);
    take_queue();
    // A run that goes back to a checkpoint drops points that the page has.
    const std::string id = fmt::format("{}-{}", started_, history_.restarts());
    const int64_t after = known_id == id ? integer_of(known_iteration).value_or(-1) : -1;
    return fmt::format("{{\"id\":\"{}\",\"after\":{},\"run\":{}}}", id, after,
                       report::run_json(name_, history_, report::kPagePoints, after));
  }

  HttpServer http_;
  WebAccess access_;
  WebPage page_;
  std::string name_;
  int64_t started_;
  int port_ = 0;
  std::thread listener_;
  std::mutex queue_mutex_;
  std::vector<Record> queue_;
  std::mutex history_mutex_;  // locked before queue_mutex_
  report::RunHistory history_;
};

Dashboard::Dashboard(const Description& description) : site_(std::make_unique<Site>(description)) {}

Dashboard::~Dashboard() = default;

void Dashboard::write(int64_t iteration, const NamedValues& values) {
  site_->write(iteration, values);
}

int Dashboard::port() const { return site_->port(); }

}  // namespace megatron
