#include "megatron/comm/collectives.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/pending_state.h"
#include "megatron/comm/transport.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/turns.h"
#include "megatron/device/cuda.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "megatron/device/trace.h"

namespace megatron::comm {
namespace {

bool can_reduce(DType dtype) {
  return is_floating(dtype) || dtype == DType::kInt64 || dtype == DType::kInt32;
}

void check_reducible(const Call& call) {
  if (can_reduce(call.dtype)) return;
  throw DtypeError(
      fmt::format("{}: elements of {} cannot be reduced; use a floating type, int64 or "
                  "int32",
                  name_of(call.operation), name_of(call.dtype)));
}

// y must hold `factor` times as many elements of the same type as x.
void check_sizes(Operation operation, const ConstView& y, const ConstView& x, int factor) {
  expect_dtype(x.dtype, y.dtype, name_of(operation));
  if (y.numel() == factor * x.numel()) return;
  throw ShapeError(fmt::format("{}: {} elements are not {} times {}", name_of(operation), y.numel(),
                               factor, x.numel()));
}

void check_member(const Group& group, int rank, const char* what) {
  if (rank >= 0 && rank < group.size()) return;
  throw InternalError(
      fmt::format("{} {} is not in group {} of {} ranks", what, rank, group.name(), group.size()));
}

// The identity, for a group of one.
void copy_if_elsewhere(TensorView y, ConstView x, Stream stream) {
  if (y.data != x.data) copy_bytes(y.data, x.data, x.bytes(), stream);
}

// A batch of messages for the flight recorder: the only message, or the bytes of all.
Call call_of_all(std::span<const Transfer> transfers) {
  if (transfers.size() == 1) return call_of(transfers[0]);
  int64_t bytes = 0;
  for (const Transfer& transfer : transfers) bytes += transfer.view.bytes();
  return {Operation::kExchange, DType::kUInt8, bytes};
}

void check_peers(std::span<const Transfer> transfers, const Group& group) {
  for (const Transfer& transfer : transfers) {
    check_member(group, transfer.peer, transfer.is_send ? "send: rank" : "recv: rank");
    invariant(transfer.peer != group.rank(), "a message goes to another rank");
  }
}

// Passes a call to the transport of the stream's memory: on_host(transport) or
// on_device(transport).
template <class OnHost, class OnDevice>
void dispatch(const Call& call, const Group& group, Stream stream, const OnHost& on_host,
              const OnDevice& on_device) {
  if (stream.is_dry()) return;
  FlightRecorder& recorder = group.transport().context().recorder;
  recorder.begin(call, group.name());
  if (stream.is_cpu()) {
    const TraceRange range(name_of(call.operation), stream);
    on_host(group.transport());
  } else {
    DeviceTransport& transport = group.device_transport(stream.device);
    // Work beside the rank's stream is not counted as the rank's communication time.
    const bool is_beside = stream == transport.own_stream();
    const TraceRange range(is_beside ? nullptr : name_of(call.operation), stream);
    on_device(transport);
  }
  recorder.finish(stream.is_cpu() ? FlightRecorder::State::kDone : FlightRecorder::State::kQueued);
}

// A collective with its memory.
struct Collective {
  Call call;
  const void* in = nullptr;
  void* out = nullptr;
};
// None in a group of one, after the copy that it may need.
using SomeCollective = std::optional<Collective>;

void run(const Collective& work, const Group& group, Stream stream) {
  dispatch(
      work.call, group, stream,
      [&](Transport& transport) { transport.run(work.call, work.in, work.out); },
      [&](DeviceTransport& transport) { transport.run(work.call, work.in, work.out, stream); });
}

// Runs f(own) on the group's own stream, after the current work of `stream` and beside its later
// work. f returns the host's remaining part for wait(), if any.
template <class F>
std::unique_ptr<Pending::State> start_beside(const Group& group, Stream stream, const F& f) {
  DeviceTransport& transport = group.device_transport(stream.device);
  const Stream own = transport.own_stream();
  std::unique_ptr<Pending::State> state = transport.pending_states().take(stream.device);
  state->stream = stream;
  state->own = own;
  state->group = group;
  cuda::record(state->done, stream.native);
  cuda::wait(own.native, state->done);
  state->rest = f(own);
  if (state->rest == nullptr) cuda::record(state->done, own.native);
  return state;
}

Pending start(const SomeCollective& work, const Group& group, Stream stream, Pending after = {}) {
  if (!work) return after;
  if (!stream.has_queue()) {
    after.wait(stream);
    run(*work, group, stream);
    return {};
  }
  return Pending(start_beside(group, stream, [&](Stream own) -> UnfinishedExchange* {
    after.wait(own);
    run(*work, group, own);
    return nullptr;
  }));
}

// Smaller collectives of GPUs take less time than the other function's turn. On CPUs none overlaps:
// a low bound leaves out single numbers, and makes ranks on CPUs take the turns of GPUs.
int64_t min_turn_bytes(Stream stream) { return stream.is_cpu() ? 1024 : 256 << 10; }

void run_in_turn(const SomeCollective& work, const Group& group, Stream stream) {
  if (!work) return;
  if (takes_turns() && work->call.bytes() >= min_turn_bytes(stream)) {
    return start(work, group, stream).wait_in_turn();
  }
  run(*work, group, stream);
}

SomeCollective all_reduce_of(TensorView x, Reduce op, const Group& group) {
  const Call call{Operation::kAllReduce, x.dtype, x.numel(), op};
  check_reducible(call);
  if (group.size() == 1) return {};
  return Collective{call, x.data, x.data};
}

SomeCollective all_gather_of(TensorView y, ConstView x, const Group& group, Stream stream) {
  check_sizes(Operation::kAllGather, y, x, group.size());
  if (group.size() > 1) {
    return Collective{{Operation::kAllGather, x.dtype, x.numel()}, x.data, y.data};
  }
  copy_if_elsewhere(y, x, stream);
  return {};
}

SomeCollective reduce_scatter_of(TensorView y, ConstView x, Reduce op, const Group& group,
                                 Stream stream) {
  const Call call{Operation::kReduceScatter, y.dtype, y.numel(), op};
  check_sizes(Operation::kReduceScatter, x, y, group.size());
  check_reducible(call);
  if (group.size() > 1) return Collective{call, x.data, y.data};
  copy_if_elsewhere(y, x, stream);
  return {};
}

SomeCollective all_to_all_of(TensorView y, ConstView x, const Group& group, Stream stream) {
  check_sizes(Operation::kAllToAll, y, x, 1);
  if (x.numel() % group.size() != 0) {
    throw ShapeError(fmt::format("all_to_all: {} elements do not divide into {} equal parts",
                                 x.numel(), group.size()));
  }
  if (group.size() == 1) {
    copy_if_elsewhere(y, x, stream);
    return {};
  }
  invariant(x.data != y.data, "all_to_all has different memory for x and y");
  return Collective{{Operation::kAllToAll, x.dtype, x.numel() / group.size()}, x.data, y.data};
}

}  // namespace

void all_reduce(TensorView x, Reduce op, const Group& group, Stream stream) {
  run_in_turn(all_reduce_of(x, op, group), group, stream);
}

void all_gather(TensorView y, ConstView x, const Group& group, Stream stream) {
  run_in_turn(all_gather_of(y, x, group, stream), group, stream);
}

void reduce_scatter(TensorView y, ConstView x, Reduce op, const Group& group, Stream stream) {
  run_in_turn(reduce_scatter_of(y, x, op, group, stream), group, stream);
}

void broadcast(TensorView x, int root, const Group& group, Stream stream) {
  check_member(group, root, "broadcast: root");
  if (group.size() == 1) return;
  const Call call{Operation::kBroadcast, x.dtype, x.numel(), Reduce::kSum, root};
  run({call, x.data, x.data}, group, stream);
}

void all_to_all(TensorView y, ConstView x, const Group& group, Stream stream) {
  run_in_turn(all_to_all_of(y, x, group, stream), group, stream);
}

void send(ConstView x, int to, const Group& group, Stream stream) {
  // A sent transfer is only read.
  const Transfer transfer{{const_cast<void*>(x.data), x.shape, x.dtype}, to, true};
  exchange({&transfer, 1}, group, stream);
}

void recv(TensorView x, int from, const Group& group, Stream stream) {
  const Transfer transfer{x, from, false};
  exchange({&transfer, 1}, group, stream);
}

void exchange(std::span<const Transfer> transfers, const Group& group, Stream stream) {
  if (transfers.empty()) return;
  check_peers(transfers, group);
  dispatch(
      call_of_all(transfers), group, stream,
      [&](Transport& transport) { transport.exchange(transfers); },
      [&](DeviceTransport& transport) { transport.exchange(transfers, stream); });
}

void barrier(const Group& group) {
  if (group.size() == 1) return;
  run({{Operation::kBarrier}}, group, Stream{});
}

void connect(const Group& group, Stream stream) {
  if (group.size() > 1 && stream.has_queue()) group.device_transport(stream.device);
}

bool can_record(const Group& group, Stream stream) {
  return group.size() == 1 || !stream.has_queue() ||
         group.device_transport(stream.device).can_record();
}

void launch_barrier(const Group& group, Stream stream) {
  if (group.size() == 1 || !stream.has_queue()) return;
  group.device_transport(stream.device).launch_barrier();
}

void expect_no_failure(const Group& group) {
  if (group.size() == 1) return;
  const Transport& transport = group.transport();
  const std::optional<std::string> failure = transport.failure();
  if (!failure) return;
  throw CommError(fmt::format("group {}: {} was released because {}", group.name(),
                              transport.name_of(group.rank()), *failure));
}

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&& other) noexcept = default;
Pending& Pending::operator=(Pending&& other) noexcept {
  state_.swap(other.state_);
  return *this;
}

Pending::~Pending() {
  // An exception is under way: the messages are no longer needed.
  if (state_ != nullptr && (state_->rest != nullptr || !state_->receives.empty())) return;
  try {
    wait();
  } catch (const Error& error) {
    // A destructor cannot throw. A failed device fails the next wait for the stream, too.
    warn(error.what());
  }
}

void Pending::wait() {
  if (state_ != nullptr) wait(state_->stream);
}

void Pending::wait(Stream later) {
  if (state_ == nullptr) return;
  std::unique_ptr<State> state = std::move(state_);
  const TraceRange range("wait_for_collective", later);
  if (state->stream.is_cpu()) {
    exchange(state->receives, *state->group, state->stream);
    return;
  }
  if (state->rest != nullptr) {
    state->rest->finish();
    cuda::record(state->done, state->own.native);
  }
  cuda::wait(later.native, state->done);
  const Group group = *state->group;  // must outlive the state
  auto& idle = group.device_transport(state->stream.device).pending_states();
  idle.give_back(std::move(state));
}

void Pending::wait_in_turn() {
  end_turn();
  wait();
}

Pending start_all_reduce(TensorView x, Reduce op, const Group& group, Stream stream,
                         Pending after) {
  return start(all_reduce_of(x, op, group), group, stream, std::move(after));
}

Pending start_all_gather(TensorView y, ConstView x, const Group& group, Stream stream) {
  return start(all_gather_of(y, x, group, stream), group, stream);
}

Pending start_reduce_scatter(TensorView y, ConstView x, Reduce op, const Group& group,
                             Stream stream) {
  return start(reduce_scatter_of(y, x, op, group, stream), group, stream);
}

Pending start_all_to_all(TensorView y, ConstView x, const Group& group, Stream stream) {
  return start(all_to_all_of(y, x, group, stream), group, stream);
}

Pending start_exchange(std::span<const Transfer> transfers, const Group& group, Stream stream) {
  if (stream.device.has_host_memory()) {
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    for (const Transfer& transfer : transfers) {
      (transfer.is_send ? sends : receives).push_back(transfer);
    }
    exchange(sends, group, stream);
    if (receives.empty()) return {};
    auto state = std::make_unique<Pending::State>();
    state->stream = stream;
    state->receives = std::move(receives);
    state->group = group;
    return Pending(std::move(state));
  }
  if (transfers.empty()) return {};
  check_peers(transfers, group);
  if (stream.is_dry()) return {};
  return Pending(start_beside(group, stream, [&](Stream own) {
    UnfinishedExchange* rest = nullptr;
    dispatch(
        call_of_all(transfers), group, own, [](Transport&) {},
        [&](DeviceTransport& transport) { rest = transport.start_exchange(transfers, own); });
    return rest;
  }));
}

}  // namespace megatron::comm
