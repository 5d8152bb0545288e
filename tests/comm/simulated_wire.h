#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "megatron/comm/messages/wire.h"

namespace megatron::comm {

// Processes simulated by threads of a test, and the messages between them.
class SimulatedNet {
 public:
  explicit SimulatedNet(int size) : boxes_(static_cast<size_t>(size)) {
    for (auto& box : boxes_) box = std::make_unique<Box>();
  }

  struct Message {
    Header header;
    std::vector<std::byte> body;
  };
  struct Box {  // of one receiver
    std::mutex mutex;
    std::condition_variable changed;
    int64_t version = 0;
    std::unordered_map<int, std::deque<Message>> from;
  };
  Box& box(int rank) { return *boxes_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(boxes_.size()); }
  void deliver(int from, int to, Message message) {
    Box& there = box(to);
    {
      const std::lock_guard lock(there.mutex);
      there.from[from].push_back(std::move(message));
      ++there.version;
    }
    there.changed.notify_one();
  }

 private:
  std::vector<std::unique_ptr<Box>> boxes_;
};

class SimulatedWire final : public Wire {
 public:
  SimulatedWire(SimulatedNet& net, int rank,
                std::chrono::milliseconds rest = std::chrono::milliseconds(500))
      : net_(net), rank_(rank), rest_(rest), box_(net.box(rank)) {}

  int rank() const override { return rank_; }
  int size() const override { return net_.size(); }
  std::unique_ptr<Sending> send(int peer, const Header& header, const void* body) override {
    const auto* const bytes = static_cast<const std::byte*>(body);
    net_.deliver(rank_, peer, {header, {bytes, bytes + header.bytes}});
    return std::make_unique<Sent>();
  }
  std::optional<Header> next(int peer) override {
    const std::lock_guard lock(box_.mutex);
    std::deque<SimulatedNet::Message>& queue = box_.from[peer];
    if (queue.empty()) return {};
    Open& open = open_[peer];
    open.message = std::move(queue.front());
    open.at = 0;
    queue.pop_front();
    return open.message.header;
  }
  void begin_body(int peer, void* to, int64_t bytes) override {
    Open& open = open_[peer];
    // A header may announce more bytes than follow.
    const auto left = static_cast<int64_t>(open.message.body.size()) - open.at;
    open.is_short = bytes > left;
    if (open.is_short || bytes == 0) return;
    std::memcpy(to, open.message.body.data() + open.at, static_cast<size_t>(bytes));
    open.at += bytes;
  }
  bool is_body_done(int peer) override { return !open_[peer].is_short; }
  void tell_failure(const std::string&) override {}
  std::optional<Report> failure() override { return {}; }
  void tell_work(const std::string&) override {}
  std::optional<Report> work() override { return {}; }
  void wait_briefly(std::unique_lock<std::mutex>& lock,
                    std::chrono::steady_clock::duration) override {
    lock.unlock();
    {
      std::unique_lock box_lock(box_.mutex);
      box_.changed.wait_for(box_lock, rest_, [this] { return box_.version != seen_; });
      seen_ = box_.version;
    }
    lock.lock();
  }
  void progress() override {}
  bool is_busy() const override { return false; }
  void wait_for_progress(std::chrono::milliseconds) override {}
  void wake() override {}
  void close() override {}

 private:
  struct Sent final : Sending {
    bool is_done() override { return true; }
  };
  struct Open {
    SimulatedNet::Message message;
    int64_t at = 0;
    bool is_short = false;
  };
  SimulatedNet& net_;
  const int rank_;
  const std::chrono::milliseconds rest_;  // at most
  SimulatedNet::Box& box_;
  int64_t seen_ = 0;
  std::unordered_map<int, Open> open_;
};

}  // namespace megatron::comm
