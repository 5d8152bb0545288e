#include "megatron/comm/nccl/nccl_transport.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/comm/nccl/flights.h"
#include "megatron/comm/nccl/library.h"
#include "megatron/comm/nccl/watchdog.h"
#include "megatron/comm/threads/thread_group.h"
#include "megatron/core/error.h"
#include "megatron/device/cuda.h"
#include "megatron/device/cuda/check.h"

namespace megatron::comm::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kNcclCloseTimeout = std::chrono::seconds(10);  // for the other members to close, too
constexpr auto kNcclLockTimeout =
    std::chrono::seconds(1);  // of the watchdog, if a rank is inside NCCL
constexpr size_t kManyFlights = 64;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat16:
      return ncclFloat16;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt64:
      return ncclInt64;
    case DType::kInt32:
      return ncclInt32;
    default:
      throw DtypeError(fmt::format("elements of {} cannot be reduced", megatron::name_of(dtype)));
  }
}

ncclRedOp_t operator_of(Reduce op) { return op == Reduce::kSum ? ncclSum : ncclMax; }

class NcclTransport final : public DeviceTransport, private Watched {
 public:
  NcclTransport(Transport& host, Device device);
  ~NcclTransport() override;

  void run(const Call& call, const void* in, void* out, Stream stream) override;
  void exchange(std::span<const Transfer> transfers, Stream stream) override;
  const char* name() const override { return "NCCL"; }
  Stream own_stream() override { return {device_, own_stream_}; }

 private:
  std::optional<std::string> problem() override;
  void abort(const std::string& reason) override;

  // Queues `issue(communicator)`, a call or a group of calls of NCCL.
  template <class Issue>
  void queue(const Call& call, cudaStream_t stream, const Issue& issue);
  ncclResult_t issue(const Call& call, const void* in, void* out, cudaStream_t stream) const;
  ncclResult_t issue(std::span<const Transfer> transfers, cudaStream_t stream) const;
  // Waits until NCCL has accepted a call. `lock` holds mutex_.
  void settle(ncclResult_t result, const Call& call, std::unique_lock<std::timed_mutex>& lock);
  [[noreturn]] void fail(const Call& call, const std::string& reason);
  void record(const Call& call, cudaStream_t stream, unsigned long long capture, cudaEvent_t begin);
  // Forgets finished flights.
  void retire();
  cudaEvent_t spare_event();
  void close() noexcept;

  const Library& nccl_;
  Transport& host_;
  const Device device_;
  const std::shared_ptr<Watchdog> watchdog_;
  cudaStream_t own_stream_ = nullptr;

  std::timed_mutex mutex_;  // guards all that follows
  ncclComm_t communicator_ = nullptr;
  std::string failure_;  // set by abort()
  Flights<cudaEvent_t> flights_;
  std::vector<cudaEvent_t> events_;        // all events
  std::vector<cudaEvent_t> spare_events_;  // unused ones
  // The end of the last call; a call on another stream waits for it.
  cudaStream_t last_stream_ = nullptr;
  cudaEvent_t last_event_ = nullptr;  // null: it is done
  unsigned long long last_capture_ = 0;
  cudaEvent_t captured_event_ = nullptr;
};

NcclTransport::NcclTransport(Transport& host, Device device)
    : nccl_(library()),
      host_(host),
      device_(device),
      watchdog_(watchdog_of(host.context(), device)) {
  const Call call{Operation::kBroadcast, DType::kUInt8, sizeof(ncclUniqueId), Reduce::kSum, 0};
  ncclUniqueId id{};
  if (host.rank() == 0) {
    const ncclResult_t result = nccl_.get_unique_id(&id);
    if (result != ncclSuccess) fail(call, nccl_.error_string(result));
  }
  host.run(call, &id, &id);

  MG_CUDA(cudaSetDevice(device.index));
  int least = 0;
  int greatest = 0;
  MG_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  try {
    MG_CUDA(cudaStreamCreateWithPriority(&own_stream_, cudaStreamNonBlocking, greatest));
    captured_event_ = spare_event();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    std::unique_lock lock(mutex_);
    const ncclResult_t result =
        nccl_.init_rank(&communicator_, host.size(), id, host.rank(), &config);
    settle(result, {Operation::kConnect}, lock);
  } catch (...) {
    close();
    throw;
  }
  watchdog_->add(*this);
}

NcclTransport::~NcclTransport() {
  watchdog_->remove(*this);
  const bool is_orderly = std::uncaught_exceptions() == 0 && !host_.failure();
  if (communicator_ != nullptr && is_orderly) {
    ncclResult_t result = nccl_.finalize(communicator_);
    const Clock::time_point deadline = Clock::now() + kNcclCloseTimeout;
    while (result == ncclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      nccl_.get_async_error(communicator_, &result);
    }
    if (result == ncclSuccess) {
      nccl_.destroy(communicator_);
      communicator_ = nullptr;
    }
  }
  close();
}

void NcclTransport::close() noexcept {
  if (communicator_ != nullptr) nccl_.abort(communicator_);
  communicator_ = nullptr;
  for (cudaEvent_t const event : events_) cudaEventDestroy(event);
  if (own_stream_ != nullptr) cudaStreamDestroy(own_stream_);
}

void NcclTransport::fail(const Call& call, const std::string& reason) {
  if (communicator_ != nullptr) {
    failure_ = reason;
    nccl_.abort(communicator_);
    communicator_ = nullptr;
  }
  throw CommError(
      fmt::format("{}: {}: {}", host_.name_of(call), host_.name_of(host_.rank()), reason));
}

void NcclTransport::settle(ncclResult_t result, const Call& call,
                           std::unique_lock<std::timed_mutex>& lock) {
  const Clock::time_point deadline = Clock::now() + host_.context().timeout.load();
  for (int64_t tries = 0; result == ncclInProgress; ++tries) {
    lock.unlock();
    if (tries < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const std::optional<std::string> others = host_.failure();
    lock.lock();
    if (communicator_ == nullptr) fail(call, failure_);
    if (others) fail(call, "was released because " + *others);
    if (Clock::now() > deadline) {
      host_.print_flight_records();
      fail(call, fmt::format("NCCL was not ready after {} s; a member did not arrive",
                             static_cast<double>(host_.context().timeout.load().count()) / 1000));
    }
    const ncclResult_t asked = nccl_.get_async_error(communicator_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  fail(call,
       fmt::format("NCCL: {}: {}", nccl_.error_string(result), nccl_.last_error(communicator_)));
}

template <class Issue>
void NcclTransport::queue(const Call& call, cudaStream_t stream, const Issue& issue) {
  std::unique_lock lock(mutex_);
  if (communicator_ == nullptr) fail(call, failure_);
  // Work that waited for an aborted member may have ended without a result.
  if (const std::optional<std::string> others = host_.failure()) {
    fail(call, "was released because " + *others);
  }
  const unsigned long long capture = cuda::capture_of(stream);
  if (stream != last_stream_ && last_event_ != nullptr && capture == last_capture_) {
    MG_CUDA(cudaStreamWaitEvent(stream, last_event_, 0));
  }
  cudaEvent_t begin = nullptr;
  if (capture == 0) {
    if (flights_.all().size() >= kManyFlights) retire();
    begin = spare_event();
    MG_CUDA(cudaEventRecord(begin, stream));
  }
  settle(issue(), call, lock);
  record(call, stream, capture, begin);
}

void NcclTransport::record(const Call& call, cudaStream_t stream, unsigned long long capture,
                           cudaEvent_t begin) {
  last_stream_ = stream;
  last_capture_ = capture;
  if (capture != 0) {  // the collective runs at each launch of the graph
    MG_CUDA(cudaEventRecord(captured_event_, stream));
    last_event_ = captured_event_;
    return;
  }
  cudaEvent_t const end = spare_event();
  flights_.add(call, begin, end);
  last_event_ = end;
  MG_CUDA(cudaEventRecord(end, stream));
}

cudaEvent_t NcclTransport::spare_event() {
  if (spare_events_.empty()) {
    cudaEvent_t event = nullptr;
    MG_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    events_.push_back(event);
    return event;
  }
  cudaEvent_t const event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

void NcclTransport::retire() {
  const auto is_done = [](cudaEvent_t event) { return cudaEventQuery(event) != cudaErrorNotReady; };
  flights_.look(Clock::now(), is_done, [&](const Flights<cudaEvent_t>::Flight& flight) {
    if (last_event_ == flight.end) last_event_ = nullptr;
    spare_events_.push_back(flight.begin);
    spare_events_.push_back(flight.end);
  });
}

void NcclTransport::run(const Call& call, const void* in, void* out, Stream stream) {
  cudaStream_t const native = static_cast<cudaStream_t>(stream.native);
  queue(call, native, [&] { return issue(call, in, out, native); });
}

void NcclTransport::exchange(std::span<const Transfer> transfers, Stream stream) {
  cudaStream_t const native = static_cast<cudaStream_t>(stream.native);
  queue(call_of(transfers[0]), native, [&] { return issue(transfers, native); });
}

// Data that is moved without a reduction counts as bytes.
ncclResult_t NcclTransport::issue(const Call& call, const void* in, void* out,
                                  cudaStream_t stream) const {
  const size_t count = static_cast<size_t>(call.count);
  const size_t bytes = static_cast<size_t>(call.bytes());
  switch (call.operation) {
    case Operation::kAllReduce:
      return nccl_.all_reduce(in, out, count, type_of(call.dtype), operator_of(call.reduce),
                              communicator_, stream);
    case Operation::kReduceScatter:
      return nccl_.reduce_scatter(in, out, count, type_of(call.dtype), operator_of(call.reduce),
                                  communicator_, stream);
    case Operation::kAllGather:
      return nccl_.all_gather(in, out, bytes, ncclUint8, communicator_, stream);
    case Operation::kBroadcast:
      return nccl_.broadcast(in, out, bytes, ncclUint8, call.peer, communicator_, stream);
    case Operation::kAllToAll: {
      nccl_.group_start();
      for (int peer = 0; peer < host_.size(); ++peer) {
        const size_t offset = static_cast<size_t>(peer) * bytes;
        nccl_.send(static_cast<const std::byte*>(in) + offset, bytes, ncclUint8, peer,
                   communicator_, stream);
        nccl_.recv(static_cast<std::byte*>(out) + offset, bytes, ncclUint8, peer, communicator_,
                   stream);
      }
      return nccl_.group_end();
    }
    default:
      throw InternalError(fmt::format("NCCL has no {}", comm::name_of(call.operation)));
  }
}

ncclResult_t NcclTransport::issue(std::span<const Transfer> transfers, cudaStream_t stream) const {
  nccl_.group_start();
  for (const Transfer& transfer : transfers) {
    const size_t bytes = static_cast<size_t>(transfer.view.bytes());
    if (transfer.is_send) {
      nccl_.send(transfer.view.data, bytes, ncclUint8, transfer.peer, communicator_, stream);
    } else {
      nccl_.recv(transfer.view.data, bytes, ncclUint8, transfer.peer, communicator_, stream);
    }
  }
  return nccl_.group_end();  // also reports errors of the calls inside
}

std::optional<std::string> NcclTransport::problem() {
  if (const std::optional<std::string> others = host_.failure()) {
    return "was released because " + *others;
  }
  const std::unique_lock lock(mutex_, kNcclLockTimeout);
  if (!lock || communicator_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  nccl_.get_async_error(communicator_, &state);
  if (state != ncclSuccess && state != ncclInProgress) {
    return fmt::format("NCCL: {}: {}", nccl_.error_string(state), nccl_.last_error(communicator_));
  }
  retire();
  const Call* const late = flights_.late(Clock::now(), host_.context().timeout.load());
  if (late == nullptr) return {};
  std::string members;
  for (int member = 0; member < host_.size(); ++member) {
    if (member == host_.rank()) continue;
    members += fmt::format("; {}: {}", host_.name_of(member), host_.last_call(member));
  }
  host_.print_flight_records();
  const std::string problem = fmt::format(
      "{} was not done after {} s. The last calls of the other members{}", host_.name_of(*late),
      static_cast<double>(host_.context().timeout.load().count()) / 1000, members);
  if (ThreadGroup* const threads = host_.threads()) threads->member_failed(host_.rank(), problem);
  return problem;
}

void NcclTransport::abort(const std::string& reason) {
  // A rank that blocks inside NCCL waits for a collective that this aborts.
  const std::unique_lock lock(mutex_, kNcclLockTimeout);
  if (communicator_ == nullptr) return;
  failure_ = reason;
  nccl_.abort(std::exchange(communicator_, nullptr));
}

}  // namespace

std::unique_ptr<DeviceTransport> make_nccl_transport(Transport& host, Device device) {
  return std::make_unique<NcclTransport>(host, device);
}

}  // namespace megatron::comm::nccl
