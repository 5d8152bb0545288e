#include "megatron/comm/messages/message_transport.h"

#include <algorithm>
#include <string_view>

#include "megatron/comm/reduce.h"

namespace megatron::comm {
namespace {

constexpr int64_t kMessagePieceBytes = int64_t{1}
                                       << 20;  // of one member's part: bounds scratch memory
constexpr int64_t kMessageSmallBytes = int64_t{16} << 10;
constexpr int64_t kTreeBytes = int64_t{1} << 20;      // of all members: too small for chain or ring
constexpr int64_t kWindowBytes = int64_t{256} << 10;  // of the chain
constexpr int64_t kWindows = 8;                       // under way at once

std::byte* message_byte(void* data, int64_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
std::byte* message_byte(const void* data, int64_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + offset;
}

// A hash (FNV-1a) that all members share. Two groups have the same with a chance of one in 10^19.
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

MessageTransport::MessageTransport(std::shared_ptr<MessageRouter> router, Membership membership,
                                   int direct)
    : Transport(std::move(membership), router->context()),
      router_(std::move(router)),
      direct_(direct),
      group_(identity(
          this->membership(),
          context().num_groups[{this->membership().name, this->membership().world_ranks}]++)) {}

std::shared_ptr<Transport> MessageTransport::subgroup(Membership membership) {
  return std::make_shared<MessageTransport>(router_, std::move(membership), direct_);
}

std::byte* MessageTransport::scratch(int64_t bytes) {
  if (static_cast<int64_t>(scratch_.size()) < bytes) scratch_.resize(static_cast<size_t>(bytes));
  return scratch_.data();
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
  std::vector<Message> out;
  std::vector<Message> in;
  for (int step = 1; step < size();
       ++step) {  // spreads the load: members start with different peers
    const int to = (rank() + step) % size();
    const int from = (rank() + size() - step) % size();
    out.push_back(to_peer(to));
    in.push_back(from_peer(from));
  }
  router_->exchange(round, out, in);
}

void MessageTransport::reduce_scatter_directly(const Round& round, const void* in, void* out) {
  const Call& call = round.call;
  const int64_t width = size_of(call.dtype);
  const int64_t piece = kMessagePieceBytes / width;
  int64_t begin = 0;
  do {
    const int64_t count = std::min(piece, call.count - begin);
    const int64_t bytes = count * width;
    const auto part = [&](int member) {
      return message_byte(in, (member * call.count + begin) * width);
    };
    scratch(bytes * size());
    exchange_all(
        round,
        [&](int to) {
          return Message{to, part(to), bytes};
        },
        [&](int from) {
          return Message{from, scratch_.data() + from * bytes, bytes};
        });
    void* const result = message_byte(out, begin * width);
    reduce_in_order({&result, 1}, inputs(part(rank()), bytes), count, call.dtype, call.reduce);
    begin += count;
  } while (begin < call.count);
}

void MessageTransport::all_reduce_directly(const Round& round, void* x) {
  const Call& call = round.call;
  const int64_t width = size_of(call.dtype);
  if (call.bytes() <= kMessageSmallBytes) {  // one way is faster than two
    const int64_t bytes = call.bytes();
    scratch(bytes * size());
    exchange_all(
        round,
        [&](int to) {
          return Message{to, x, bytes};
        },
        [&](int from) {
          return Message{from, scratch_.data() + from * bytes, bytes};
        });
    return reduce_in_order({&x, 1}, inputs(x, bytes), call.count, call.dtype, call.reduce);
  }
  const int64_t piece = kMessagePieceBytes / width * size();
  for (int64_t begin = 0; begin < call.count; begin += piece) {
    const int64_t count = std::min(piece, call.count - begin);
    const auto offset = [&](int member) { return count * member / size(); };
    const auto share = [&](int member) {
      return message_byte(x, (begin + offset(member)) * width);
    };
    const auto bytes = [&](int member) { return (offset(member + 1) - offset(member)) * width; };
    const int64_t own_bytes = bytes(rank());
    scratch(own_bytes * size());
    exchange_all(
        round,
        [&](int to) {
          return Message{to, share(to), bytes(to)};
        },
        [&](int from) {
          return Message{from, scratch_.data() + from * own_bytes, own_bytes};
        });
    void* const own = share(rank());
    reduce_in_order({&own, 1}, inputs(own, own_bytes), own_bytes / width, call.dtype, call.reduce);
    exchange_all(
        round,
        [&](int to) {
          return Message{to, own, own_bytes};
        },
        [&](int from) {
          return Message{from, share(from), bytes(from)};
        });
  }
}

// A member's subtree is the members after it; its size is the member's lowest set bit.
void MessageTransport::gather_up(const Round& round, std::byte* blocks, int64_t bytes) {
  for (int step = 1; step < size(); step *= 2) {
    if ((rank() & step) != 0) {
      const int count = std::min(step, size() - rank());
      const Message subtree{rank() - step, blocks + rank() * bytes, count * bytes};
      return router_->exchange(round, {&subtree, 1}, {});
    }
    const int child = rank() + step;
    if (child >= size()) continue;
    const Message subtree{child, blocks + child * bytes, std::min(step, size() - child) * bytes};
    router_->exchange(round, {}, {&subtree, 1});
  }
}

void MessageTransport::spread_down(const Round& round, std::byte* data, int64_t bytes, int root) {
  const auto member_at = [&](int place) { return (place + root) % size(); };
  const int place = (rank() + size() - root) % size();  // in the tree; the root is 0
  int reach = 1;                                        // size of this place's subtree
  while (reach < size() && (place & reach) == 0) reach *= 2;
  Sendings sendings;
  int64_t begin = 0;
  do {
    const int64_t piece = std::min(kMessagePieceBytes, bytes - begin);
    if (place > 0) {
      const Message wanted{member_at(place - reach), data + begin, piece};
      router_->exchange(round, {}, {&wanted, 1});
    }
    for (int step = reach / 2; step > 0; step /= 2) {
      if (place + step >= size()) continue;
      sendings.push_back(router_->start(round, {member_at(place + step), data + begin, piece}));
    }
    begin += piece;
  } while (begin < bytes);
  router_->finish(round, sendings);
}

void MessageTransport::all_reduce_by_tree(const Round& round, void* x) {
  const Call& call = round.call;
  const int64_t bytes = call.bytes();
  std::byte* const blocks = scratch(bytes * size());
  copy_host(blocks + rank() * bytes, x, bytes);
  gather_up(round, blocks, bytes);
  if (rank() == 0) {
    reduce_in_order({&x, 1}, inputs(x, bytes), call.count, call.dtype, call.reduce);
  }
  spread_down(round, message_byte(x, 0), bytes, 0);
}

void MessageTransport::all_gather_by_ring(const Round& round, std::byte* out, int64_t bytes) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  for (int step = 0; step + 1 < size(); ++step) {
    const int mine = (rank() + size() - step) % size();
    const int theirs = (previous + size() - step) % size();
    const Message to{next, out + mine * bytes, bytes};
    const Message from{previous, out + theirs * bytes, bytes};
    router_->exchange(round, {&to, 1}, {&from, 1});
  }
}

void MessageTransport::all_to_all(const Round& round, const void* in, void* out) {
  const int64_t bytes = round.call.bytes();
  copy_host(message_byte(out, rank() * bytes), message_byte(in, rank() * bytes), bytes);
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size();
    const int from = (rank() + size() - step) % size();
    const Message sent{to, message_byte(in, to * bytes), bytes};
    const Message wanted{from, message_byte(out, from * bytes), bytes};
    router_->exchange(round, {&sent, 1}, {&wanted, 1});
  }
}

// Sums windows along the chain of ranks: each rank adds its input to the sum from the rank below
// and passes it on; the last one has the results, which return down the chain. Several windows are
// under way at once.
class MessageTransport::Chain {
 public:
  // For windows of at most `elements`.
  Chain(MessageTransport& self, const Round& round, int64_t elements)
      : router_(*self.router_),
        round_(round),
        rank_(self.rank()),
        last_(self.size() - 1),
        slot_bytes_(elements * size_of(sum_dtype(round.call.dtype))),
        sums_(self.scratch(2 * kWindows * slot_bytes_)),
        passed_(sums_ + kWindows * slot_bytes_) {}

  // The size of a window for parts of `count` elements.
  static int64_t elements(int64_t count, DType dtype) {
    return std::min(count, kWindowBytes / size_of(sum_dtype(dtype)));
  }

  // window_at(i) returns window i.
  template <class F>
  void run(int64_t num_windows, const F& window_at) {
    for (int64_t i = 0; i < num_windows + kWindows; ++i) {
      if (i < num_windows) add(i, window_at(i));
      if (i >= kWindows && rank_ < last_) take_back(i - kWindows, window_at(i - kWindows));
    }
    router_.finish(round_, up_);
    router_.finish(round_, down_);
  }

 private:
  void add(int64_t i, const Window& window) {
    const DType dtype = round_.call.dtype;
    std::byte* const sums = sums_ + i % kWindows * slot_bytes_;
    const int64_t bytes = window.count * size_of(sum_dtype(dtype));
    router_.finish(round_, up_, kWindows - 1);  // its last content has left
    if (rank_ == 0) {
      begin_sum(sums, window.own, window.count, dtype);
    } else {
      const Message below{rank_ - 1, sums, bytes};
      router_.exchange(round_, {}, {&below, 1});
      add_to_sum(sums, window.own, window.count, dtype, round_.call.reduce);
    }
    if (rank_ < last_) {
      up_.push_back(router_.start(round_, {rank_ + 1, sums, bytes}));
    } else {
      std::byte* const result = place(i, window);
      end_sum(result, sums, window.count, dtype);
      pass_on(window, result);
    }
  }
  void take_back(int64_t i, const Window& window) {
    if (rank_ < window.lowest) return;
    std::byte* const result = place(i, window);
    const Message above{rank_ + 1, result, window.count * size_of(round_.call.dtype)};
    router_.exchange(round_, {}, {&above, 1});
    pass_on(window, result);
  }
  std::byte* place(int64_t i, const Window& window) {
    router_.finish(round_, down_, kWindows - 1);
    return window.result != nullptr ? message_byte(window.result, 0)
                                    : passed_ + i % kWindows * slot_bytes_;
  }
  void pass_on(const Window& window, std::byte* result) {
    if (rank_ <= window.lowest) return;
    down_.push_back(
        router_.start(round_, {rank_ - 1, result, window.count * size_of(round_.call.dtype)}));
  }

  MessageRouter& router_;
  const Round& round_;
  const int rank_;
  const int last_;
  const int64_t slot_bytes_;
  std::byte* const sums_;
  std::byte* const passed_;
  Sendings up_;
  Sendings down_;
};

void MessageTransport::all_reduce_by_chain(const Round& round, void* x) {
  const Call& call = round.call;
  const int64_t piece = Chain::elements(call.count, call.dtype);
  Chain(*this, round, piece).run((call.count + piece - 1) / piece, [&](int64_t i) {
    void* const own = message_byte(x, i * piece * size_of(call.dtype));
    return Window{own, own, std::min(piece, call.count - i * piece), 0};
  });
}

void MessageTransport::reduce_scatter_by_chain(const Round& round, const void* in, void* out) {
  const Call& call = round.call;
  const int64_t width = size_of(call.dtype);
  if (call.count == 0) return;
  const int64_t piece = Chain::elements(call.count, call.dtype);
  const int64_t windows_a_part = (call.count + piece - 1) / piece;
  Chain(*this, round, piece).run(windows_a_part * size(), [&](int64_t i) {
    const auto part = static_cast<int>(i / windows_a_part);
    const int64_t begin = i % windows_a_part * piece;
    return Window{message_byte(in, (part * call.count + begin) * width),
                  part == rank() ? message_byte(out, begin * width) : nullptr,
                  std::min(piece, call.count - begin), part};
  });
}

void MessageTransport::run(const Call& call, const void* in, void* out) {
  const Round round{*this, group_, call};
  const int64_t bytes = call.bytes();
  const bool is_small = bytes * size() <= kTreeBytes;
  std::byte* const own = message_byte(out, rank() * bytes);  // for all_gather
  switch (call.operation) {
    case Operation::kAllReduce:
      if (is_direct()) return all_reduce_directly(round, out);
      return is_small ? all_reduce_by_tree(round, out) : all_reduce_by_chain(round, out);
    case Operation::kReduceScatter:
      if (is_direct()) return reduce_scatter_directly(round, in, out);
      return reduce_scatter_by_chain(round, in, out);
    case Operation::kBroadcast:
      return spread_down(round, message_byte(out, 0), bytes, call.peer);
    case Operation::kAllGather:
      copy_host(own, in, bytes);
      if (is_direct()) {
        return exchange_all(
            round,
            [&](int to) {
              return Message{to, own, bytes};
            },
            [&](int from) {
              return Message{from, message_byte(out, from * bytes), bytes};
            });
      }
      if (!is_small) return all_gather_by_ring(round, message_byte(out, 0), bytes);
      gather_up(round, message_byte(out, 0), bytes);
      return spread_down(round, message_byte(out, 0), bytes * size(), 0);
    case Operation::kAllToAll:
      return all_to_all(round, in, out);
    default:  // a barrier
      if (is_direct()) {
        return exchange_all(
            round, [](int to) { return Message{to}; }, [](int from) { return Message{from}; });
      }
      gather_up(round, nullptr, 0);
      return spread_down(round, nullptr, 0, 0);
  }
}

void MessageTransport::exchange(std::span<const Transfer> transfers) {
  const auto message = [](const Transfer& transfer) {
    return Message{transfer.peer, transfer.view.data, transfer.view.bytes()};
  };
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) router_->post({*this, group_, call_of(transfer)}, message(transfer));
  }
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) continue;
    const Message wanted = message(transfer);
    router_->exchange({*this, group_, call_of(transfer)}, {}, {&wanted, 1});
  }
}

}  // namespace megatron::comm
