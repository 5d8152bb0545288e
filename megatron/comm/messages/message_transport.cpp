#include "megatron/comm/messages/message_transport.h"

#include <algorithm>
#include <string_view>

#include "megatron/comm/reduce.h"

namespace megatron::comm {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of one member's part: bounds scratch memory
constexpr int64_t kSmallBytes = int64_t{16} << 10;

std::byte* at(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }
std::byte* at(const void* data, int64_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + offset;
}

// The same number for all members and, but for one chance in 10^19, for no other group (FNV-1a).
uint64_t identity(const Membership& membership, int number) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 255u)) * 1099511628211u;
  };
  for (const char letter : membership.name) add(static_cast<unsigned char>(letter));
  for (const int rank : membership.world_ranks) add(static_cast<uint64_t>(rank) + 256);
  add(static_cast<uint64_t>(number));
  return hash;
}

}  // namespace

MessageTransport::MessageTransport(std::shared_ptr<PostOffice> office, Membership membership)
    : Transport(std::move(membership), office->context()),
      office_(std::move(office)),
      group_(identity(
          this->membership(),
          context().num_groups[{this->membership().name, this->membership().world_ranks}]++)) {}

std::shared_ptr<Transport> MessageTransport::subgroup(Membership membership) {
  return std::make_shared<MessageTransport>(office_, std::move(membership));
}

std::byte* MessageTransport::scratch(int member, int64_t bytes) {
  const int64_t needed = bytes * size();
  if (static_cast<int64_t>(scratch_.size()) < needed) scratch_.resize(static_cast<size_t>(needed));
  return scratch_.data() + member * bytes;
}

std::vector<const void*> MessageTransport::inputs(const void* own, int64_t bytes) const {
  std::vector<const void*> list;
  list.reserve(static_cast<size_t>(size()));
  for (int member = 0; member < size(); ++member) {
    list.push_back(member == rank() ? own : scratch_.data() + member * bytes);
  }
  return list;
}

template <class ToPeer, class FromPeer>
void MessageTransport::exchange_all(const Round& round, const ToPeer& to_peer,
                                    const FromPeer& from_peer) {
  std::vector<Parcel> out;
  std::vector<Parcel> in;
  for (int step = 1; step < size(); ++step) {  // not all to the same member at once
    const int to = (rank() + step) % size();
    const int from = (rank() + size() - step) % size();
    out.push_back(to_peer(to));
    in.push_back(from_peer(from));
  }
  office_->exchange(round, out, in);
}

void MessageTransport::reduce_scatter(const Round& round, const void* in, void* out) {
  const Call& call = round.call;
  const int64_t width = size_of(call.dtype);
  const int64_t piece = kPieceBytes / width;
  int64_t begin = 0;
  do {
    const int64_t count = std::min(piece, call.count - begin);
    const int64_t bytes = count * width;
    const auto part = [&](int member) { return at(in, (member * call.count + begin) * width); };
    scratch(0, bytes);
    exchange_all(
        round,
        [&](int to) {
          return Parcel{to, part(to), bytes};
        },
        [&](int from) {
          return Parcel{from, scratch(from, bytes), bytes};
        });
    void* const result = at(out, begin * width);
    reduce_in_order({&result, 1}, inputs(part(rank()), bytes), count, call.dtype, call.reduce);
    begin += count;
  } while (begin < call.count);
}

void MessageTransport::all_reduce(const Round& round, void* x) {
  const Call& call = round.call;
  const int64_t width = size_of(call.dtype);
  if (call.bytes() <= kSmallBytes) {  // one way is shorter than two
    const int64_t bytes = call.bytes();
    scratch(0, bytes);
    exchange_all(
        round,
        [&](int to) {
          return Parcel{to, x, bytes};
        },
        [&](int from) {
          return Parcel{from, scratch(from, bytes), bytes};
        });
    return reduce_in_order({&x, 1}, inputs(x, bytes), call.count, call.dtype, call.reduce);
  }
  const int64_t piece = kPieceBytes / width * size();
  for (int64_t begin = 0; begin < call.count; begin += piece) {
    const int64_t count = std::min(piece, call.count - begin);
    const auto offset = [&](int member) { return count * member / size(); };
    const auto share = [&](int member) { return at(x, (begin + offset(member)) * width); };
    const auto bytes = [&](int member) { return (offset(member + 1) - offset(member)) * width; };
    const int64_t own_bytes = bytes(rank());
    scratch(0, own_bytes);
    exchange_all(
        round,
        [&](int to) {
          return Parcel{to, share(to), bytes(to)};
        },
        [&](int from) {
          return Parcel{from, scratch(from, own_bytes), own_bytes};
        });
    void* const own = share(rank());
    reduce_in_order({&own, 1}, inputs(own, own_bytes), own_bytes / width, call.dtype, call.reduce);
    exchange_all(
        round,
        [&](int to) {
          return Parcel{to, own, own_bytes};
        },
        [&](int from) {
          return Parcel{from, share(from), bytes(from)};
        });
  }
}

void MessageTransport::broadcast(const Round& round, void* x) {
  const Parcel whole{round.call.peer, x, round.call.bytes()};
  if (rank() != round.call.peer) return office_->exchange(round, {}, {&whole, 1});
  std::vector<Parcel> out;
  for (int member = 0; member < size(); ++member) {
    if (member != rank()) out.push_back({member, x, whole.bytes});
  }
  office_->exchange(round, out, {});
}

void MessageTransport::run(const Call& call, const void* in, void* out) {
  const Round round{*this, group_, call};
  const int64_t bytes = call.bytes();
  switch (call.operation) {
    case Operation::kAllReduce:
      return all_reduce(round, out);
    case Operation::kReduceScatter:
      return reduce_scatter(round, in, out);
    case Operation::kBroadcast:
      return broadcast(round, out);
    case Operation::kAllGather:
      copy_host(at(out, rank() * bytes), in, bytes);
      return exchange_all(
          round,
          [&](int to) {
            return Parcel{to, at(out, rank() * bytes), bytes};
          },
          [&](int from) {
            return Parcel{from, at(out, from * bytes), bytes};
          });
    case Operation::kAllToAll:
      copy_host(at(out, rank() * bytes), at(in, rank() * bytes), bytes);
      return exchange_all(
          round,
          [&](int to) {
            return Parcel{to, at(in, to * bytes), bytes};
          },
          [&](int from) {
            return Parcel{from, at(out, from * bytes), bytes};
          });
    default:  // a barrier
      return exchange_all(
          round, [](int to) { return Parcel{to}; }, [](int from) { return Parcel{from}; });
  }
}

void MessageTransport::exchange(std::span<const Transfer> transfers) {
  const auto parcel = [](const Transfer& transfer) {
    return Parcel{transfer.peer, transfer.view.data, transfer.view.bytes()};
  };
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) office_->post({*this, group_, call_of(transfer)}, parcel(transfer));
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) continue;
    const Parcel wanted = parcel(transfer);
    office_->exchange({*this, group_, call_of(transfer)}, {}, {&wanted, 1});
  }
}

}  // namespace megatron::comm
