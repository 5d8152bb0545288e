#include "megatron/comm/mpi/mpi_wire.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/error.h"

namespace megatron::comm::mpi {
namespace {

constexpr int kHeaderTag = 1;
constexpr int kBodyTag = 2;
constexpr int kFailureTag = 3;
constexpr int kWorkTag = 4;
constexpr int64_t kInlineBytes = 8 << 10;    // bodies that travel with their header
constexpr int64_t kMpiPieceBytes = 1 << 30;  // MPI counts in int
constexpr int kReportBytes = 4096;           // longer ones are cut
constexpr auto kMpiFarewell = std::chrono::seconds(1);
constexpr auto kMpiSpinTime = std::chrono::milliseconds(2);
constexpr auto kNap = std::chrono::microseconds(20);

void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw CommError(fmt::format("{} failed: {}", call,
                              std::string_view(text.data(), static_cast<size_t>(length))));
}

bool are_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  check_mpi(
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
      "MPI_Testall");
  return done != 0;
}

// Starts `transfer(data, count)` for pieces of a body that fit MPI's int counts.
template <class Byte, class F>
void for_pieces(Byte* body, int64_t bytes, const F& transfer) {
  for (int64_t at = 0; at < bytes; at += kMpiPieceBytes) {
    transfer(body + at, static_cast<int>(std::min(kMpiPieceBytes, bytes - at)));
  }
}

class MpiSending final : public Sending {
 public:
  // Counts in `num_under_way` until it is done.
  MpiSending(int peer, const Header& header, const void* body, int& num_under_way)
      : num_under_way_(num_under_way) {
    ++num_under_way_;
    const bool is_inline = header.bytes <= kInlineBytes;
    head_.resize(sizeof(Header) + static_cast<size_t>(is_inline ? header.bytes : 0));
    std::memcpy(head_.data(), &header, sizeof(Header));
    if (head_.size() > sizeof(Header)) {
      std::memcpy(head_.data() + sizeof(Header), body, head_.size() - sizeof(Header));
    }
    send(head_.data(), static_cast<int>(head_.size()), peer, kHeaderTag);
    if (is_inline) return;
    for_pieces(static_cast<const std::byte*>(body), header.bytes,
               [&](const std::byte* data, int count) { send(data, count, peer, kBodyTag); });
  }
  ~MpiSending() override { end(); }
  bool is_done() override {
    if (is_under_way_ && are_done(requests_)) end();
    return !is_under_way_;
  }

 private:
  void end() {
    if (std::exchange(is_under_way_, false)) --num_under_way_;
  }

  void send(const void* data, int count, int peer, int tag) {
    requests_.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(data, count, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests_.back()),
              "MPI_Isend");
  }

  int& num_under_way_;
  bool is_under_way_ = true;
  std::vector<std::byte> head_;
  std::vector<MPI_Request> requests_;
};

class MpiWire final : public Wire {
 public:
  MpiWire();

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::unique_ptr<Sending> send(int peer, const Header& header, const void* body) override {
    return std::make_unique<MpiSending>(peer, header, body, num_under_way_);
  }
  std::optional<Header> next(int peer) override;
  void begin_body(int peer, void* to, int64_t bytes) override;
  bool is_body_done(int peer) override { return are_done(at(peer).body); }
  bool takes_parts() const override { return false; }
  void tell_failure(const std::string& message) override;
  std::optional<Report> failure() override { return heard(failure_); }
  void tell_work(const std::string& what) override;
  std::optional<Report> work() override;
  void wait_briefly(std::unique_lock<std::mutex>& lock,
                    std::chrono::steady_clock::duration idle) override;
  void progress() override {}
  bool is_busy() const override { return num_under_way_ > 0; }
  void wait_for_progress(std::chrono::milliseconds time) override;
  void wake() override;
  void close() override;

 private:
  struct Peer {
    std::vector<std::byte> head;
    MPI_Request header = MPI_REQUEST_NULL;
    std::vector<MPI_Request> body;
  };
  // Receives reports from any rank.
  struct ReportReceive {
    int tag = 0;
    std::array<char, kReportBytes> text{};
    MPI_Request request = MPI_REQUEST_NULL;
  };
  // Report that is being sent to all others.
  struct ReportSend {
    std::string text;
    std::vector<MPI_Request> requests;
  };
  Peer& at(int peer) { return peers_[static_cast<size_t>(peer)]; }
  void listen(ReportReceive& receive);
  std::optional<Report> heard(ReportReceive& receive);
  void tell_all(ReportSend& telling, int tag);

  int rank_ = 0;
  std::vector<Peer> peers_;
  ReportReceive failure_{.tag = kFailureTag};
  ReportReceive work_{.tag = kWorkTag};
  std::optional<ReportSend> told_work_;
  int num_under_way_ = 0;  // sendings
  std::mutex alarm_mutex_;
  std::condition_variable alarm_;
  bool is_alarmed_ = false;
};

MpiWire::MpiWire() {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw CommError("this MPI does not allow programs with threads; install Open MPI 4 or newer");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int size = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  peers_.resize(static_cast<size_t>(size));
  listen(failure_);
  listen(work_);
}

std::optional<Header> MpiWire::next(int from) {
  Peer& peer = at(from);
  if (peer.header == MPI_REQUEST_NULL) {
    peer.head.resize(sizeof(Header) + kInlineBytes);
    check_mpi(MPI_Irecv(peer.head.data(), static_cast<int>(peer.head.size()), MPI_BYTE, from,
                        kHeaderTag, MPI_COMM_WORLD, &peer.header),
              "MPI_Irecv");
  }
  int done = 0;
  MPI_Status status;
  check_mpi(MPI_Test(&peer.header, &done, &status), "MPI_Test");
  if (done == 0) return {};
  int count = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  Header header;
  std::memcpy(&header, peer.head.data(), sizeof(Header));
  const int64_t num_inline = header.bytes <= kInlineBytes ? header.bytes : 0;
  if (count != static_cast<int64_t>(sizeof(Header)) + num_inline) {
    throw CommError(fmt::format("rank {} of the world sent an invalid message", from));
  }
  return header;
}

void MpiWire::begin_body(int from, void* to, int64_t bytes) {
  Peer& peer = at(from);
  peer.body.clear();
  if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(to, peer.head.data() + sizeof(Header), static_cast<size_t>(bytes));
    return;
  }
  for_pieces(static_cast<std::byte*>(to), bytes, [&](std::byte* data, int count) {
    peer.body.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Irecv(data, count, MPI_BYTE, from, kBodyTag, MPI_COMM_WORLD, &peer.body.back()),
              "MPI_Irecv");
  });
}

void MpiWire::listen(ReportReceive& receive) {
  check_mpi(MPI_Irecv(receive.text.data(), kReportBytes, MPI_BYTE, MPI_ANY_SOURCE, receive.tag,
                      MPI_COMM_WORLD, &receive.request),
            "MPI_Irecv");
}

std::optional<Wire::Report> MpiWire::heard(ReportReceive& receive) {
  if (receive.request == MPI_REQUEST_NULL) return {};
  int done = 0;
  MPI_Status status;
  check_mpi(MPI_Test(&receive.request, &done, &status), "MPI_Test");
  if (done == 0) return {};
  int count = 0;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  return Report{status.MPI_SOURCE, std::string(receive.text.data(), static_cast<size_t>(count))};
}

std::optional<Wire::Report> MpiWire::work() {
  std::optional<Report> reports = heard(work_);
  if (reports) listen(work_);
  return reports;
}

void MpiWire::tell_all(ReportSend& telling, int tag) {
  const int count = std::min(static_cast<int>(telling.text.size()), kReportBytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    telling.requests.push_back(MPI_REQUEST_NULL);
    check_mpi(MPI_Isend(telling.text.data(), count, MPI_BYTE, peer, tag, MPI_COMM_WORLD,
                        &telling.requests.back()),
              "MPI_Isend");
  }
}

void MpiWire::tell_failure(const std::string& message) {
  ReportSend telling{message, {}};
  tell_all(telling, kFailureTag);
  // A hanging rank does not receive it; do not hang, too.
  const auto deadline = std::chrono::steady_clock::now() + kMpiFarewell;
  while (!are_done(telling.requests) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void MpiWire::tell_work(const std::string& what) {
  if (told_work_ && !are_done(told_work_->requests)) return;  // some rank does not receive
  told_work_.emplace(ReportSend{what, {}});
  tell_all(*told_work_, kWorkTag);
}

// MPI has no way to wait with a time-out.
void MpiWire::wait_briefly(std::unique_lock<std::mutex>& lock,
                           std::chrono::steady_clock::duration idle) {
  lock.unlock();
  if (idle < kMpiSpinTime) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kNap);
  }
  lock.lock();
}

void MpiWire::wait_for_progress(std::chrono::milliseconds time) {
  std::unique_lock lock(alarm_mutex_);
  alarm_.wait_for(lock, time, [this] { return is_alarmed_; });
  is_alarmed_ = false;
}

void MpiWire::wake() {
  {
    const std::lock_guard lock(alarm_mutex_);
    is_alarmed_ = true;
  }
  alarm_.notify_one();
}

void MpiWire::close() {
  for (ReportReceive* const receive : {&failure_, &work_}) {
    check_mpi(MPI_Cancel(&receive->request), "MPI_Cancel");
    check_mpi(MPI_Request_free(&receive->request), "MPI_Request_free");
  }
  check_mpi(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace

std::unique_ptr<Wire> make_mpi_wire() { return std::make_unique<MpiWire>(); }

}  // namespace megatron::comm::mpi
