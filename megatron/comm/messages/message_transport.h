#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/messages/post_office.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// Collectives of processes, made of messages between every two of them. Sums are made in rank order
// by the rank whose part they are, never on the way, so that they have the bits that threads get.
class MessageTransport final : public Transport {
 public:
  MessageTransport(std::shared_ptr<PostOffice> office, Membership membership);

  std::shared_ptr<Transport> subgroup(Membership membership) override;
  void run(const Call& call, const void* in, void* out) override;
  void exchange(std::span<const Transfer> transfers) override;
  std::optional<std::string> failure() const override { return office_->failure(); }

 private:
  using Parcel = PostOffice::Parcel;
  using Round = PostOffice::Round;

  // Each other member gets `bytes` of `to_peer(member)` and gives as many to `from_peer(member)`.
  template <class ToPeer, class FromPeer>
  void exchange_all(const Round& round, const ToPeer& to_peer, const FromPeer& from_peer);
  void reduce_scatter(const Round& round, const void* in, void* out);
  void all_reduce(const Round& round, void* x);
  void broadcast(const Round& round, void* x);
  // The inputs of all members for one piece: `own` and those of the others, received into scratch_.
  std::vector<const void*> inputs(const void* own, int64_t bytes) const;
  std::byte* scratch(int member, int64_t bytes);

  const std::shared_ptr<PostOffice> office_;
  const uint64_t group_;
  std::vector<std::byte> scratch_;
};

}  // namespace megatron::comm
