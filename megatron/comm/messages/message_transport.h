#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/messages/message_router.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// Collectives between processes, built on messages. Sums are taken in rank order, so they have the
// same bits as those of threads. Members of groups of at most `direct` exchange pairwise, which is
// fastest. In a larger group a rank has few peers, and its memory does not depend on the size of
// the group:
//
//   barrier, small all_gather, small all_reduce   up a binary tree to rank 0 and down again
//   broadcast                                     down a binary tree from the root
//   large all_reduce, reduce_scatter              sums travel along the chain 0, 1, .. in windows,
//                                                 results return along it
//   large all_gather                              around the ring
//   all_to_all                                    with one member at a time
class MessageTransport final : public Transport {
 public:
  static constexpr int kDirect = 8;
  MessageTransport(std::shared_ptr<MessageRouter> router, Membership membership,
                   int direct = kDirect);

  std::shared_ptr<Transport> subgroup(Membership membership) override;
  void run(const Call& call, const void* in, void* out) override;
  void exchange(std::span<const Transfer> transfers) override;
  std::optional<std::string> failure() const override { return router_->failure(); }
  void check_for_failures() override { router_->check_for_failures(); }
  void print_flight_records() const override {
    Transport::print_flight_records();
    router_->print_all_stacks();
  }
  bool may_keep_waiting(std::chrono::steady_clock::time_point begin) override {
    return router_->may_keep_waiting(begin);
  }

 private:
  using Message = MessageRouter::Message;
  using Round = MessageRouter::Round;
  using Sendings = std::deque<std::unique_ptr<Sending>>;

  bool is_direct() const { return size() <= direct_; }
  // Sends `bytes` from from_peer(member) to each other member, and receives as many into
  // to_peer(member).
  template <class ToPeer, class FromPeer>
  void exchange_all(const Round& round, const ToPeer& to_peer, const FromPeer& from_peer);
  void reduce_scatter_directly(const Round& round, const void* in, void* out);
  void all_reduce_directly(const Round& round, void* x);
  // The inputs of all members for one piece: `own`, and the others, received into scratch_.
  std::vector<const void*> inputs(const void* own, int64_t bytes) const;
  std::byte* scratch(int64_t bytes);

  // Gathers at rank 0 the `bytes` of every member i at blocks + i * bytes.
  void gather_up(const Round& round, std::byte* blocks, int64_t bytes);
  // Broadcasts from the root, in pieces.
  void spread_down(const Round& round, std::byte* data, int64_t bytes, int root);
  void all_reduce_by_tree(const Round& round, void* x);
  void all_gather_by_ring(const Round& round, std::byte* out, int64_t bytes);
  void all_to_all(const Round& round, const void* in, void* out);

  // A pipelined piece of a sum along the chain.
  struct Window {
    const void* own = nullptr;  // this rank's input
    void* result = nullptr;     // output of this rank; null: it only forwards the sum
    int64_t count = 0;          // elements
    int lowest = 0;             // lowest rank that needs the result
  };
  class Chain;
  void all_reduce_by_chain(const Round& round, void* x);
  void reduce_scatter_by_chain(const Round& round, const void* in, void* out);

  const std::shared_ptr<MessageRouter> router_;
  const int direct_;
  const uint64_t group_;
  std::vector<std::byte> scratch_;
};

}  // namespace megatron::comm
