#include "megatron/comm/threads/thread_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "megatron/comm/bytes.h"
#include "megatron/comm/reduce.h"
#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

using Place = ThreadGroup::Place;

// Each rank reduces its share of the elements and writes it to all members.
void all_reduce(const Call& call, std::span<const Place> places, int64_t rank) {
  const int64_t size = static_cast<int64_t>(places.size());
  const int64_t begin = call.count * rank / size;
  const int64_t count = call.count * (rank + 1) / size - begin;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Place& place : places) {
    in.push_back(byte_at(place.in, begin * size_of(call.dtype)));
    out.push_back(byte_at(place.out, begin * size_of(call.dtype)));
  }
  reduce_in_order(out, in, count, call.dtype, call.reduce);
}

void reduce_scatter(const Call& call, std::span<const Place> places, int64_t rank) {
  std::vector<const void*> in;
  for (const Place& place : places) in.push_back(byte_at(place.in, rank * call.bytes()));
  reduce_in_order({&places[static_cast<size_t>(rank)].out, 1}, in, call.count, call.dtype,
                  call.reduce);
}

}  // namespace

ThreadTransport::ThreadTransport(ThreadWorld& world, Membership membership)
    : Transport(membership,
                world.rank(membership.world_ranks[static_cast<size_t>(membership.rank)])),
      world_(world),
      group_(world.group(membership)) {}

std::shared_ptr<Transport> ThreadTransport::subgroup(Membership membership) {
  return std::make_shared<ThreadTransport>(world_, std::move(membership));
}

void ThreadTransport::run(const Call& call, const void* in, void* out) {
  group_.enter(*this, call, in, out);
  const std::span<const Place> places = group_.places();
  const int64_t bytes = call.bytes();
  switch (call.operation) {
    case Operation::kAllReduce:
      all_reduce(call, places, rank());
      break;
    case Operation::kReduceScatter:
      reduce_scatter(call, places, rank());
      break;
    case Operation::kAllGather:
      for (int i = 0; i < size(); ++i) {
        copy_host(byte_at(out, i * bytes), places[static_cast<size_t>(i)].in, bytes);
      }
      break;
    case Operation::kAllToAll:
      for (int i = 0; i < size(); ++i) {
        const void* const theirs = places[static_cast<size_t>(i)].in;
        copy_host(byte_at(out, i * bytes), byte_at(theirs, rank() * bytes), bytes);
      }
      break;
    case Operation::kBroadcast:
      copy_host(out, places[static_cast<size_t>(call.peer)].in, bytes);
      break;
    default:
      break;
  }
  group_.leave(rank());
}

std::optional<std::string> ThreadTransport::failure() const {
  if (!world_.has_departures()) return {};
  const std::optional<ThreadWorld::Failure> first = world_.failure();
  if (!first) return {};
  return fmt::format("rank {} of the world failed: {}", first->rank, first->message);
}

std::string ThreadTransport::last_call(int member) const {
  const int world_rank = membership().world_ranks[static_cast<size_t>(member)];
  return world_.rank(world_rank)->recorder.last();
}

void ThreadTransport::exchange(std::span<const Transfer> transfers) {
  const auto bytes_of = [](const Transfer& transfer) {
    return std::span(static_cast<std::byte*>(transfer.view.data),
                     static_cast<size_t>(transfer.view.bytes()));
  };
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) group_.post(*this, call_of(transfer), bytes_of(transfer));
  }
  for (const Transfer& transfer : transfers) {
    if (!transfer.is_send) group_.receive(*this, call_of(transfer), bytes_of(transfer));
  }
}

}  // namespace megatron::comm
