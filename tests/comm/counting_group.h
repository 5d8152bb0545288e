#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/transport.h"

namespace megatron::comm {

// Bytes of the calls of each kind in the groups of each name (Call::bytes).
using CountedBytes = std::map<std::pair<std::string, Operation>, int64_t>;

// As dry_group(), a world whose other ranks do not exist. Counts the calls.
class CountingTransport : public Transport {
 public:
  CountingTransport(Membership membership, std::shared_ptr<RankContext> context,
                    CountedBytes& counted)
      : Transport(std::move(membership), std::move(context)), counted_(counted) {}

  std::shared_ptr<Transport> subgroup(Membership membership) override {
    return std::make_shared<CountingTransport>(std::move(membership), shared(), counted_);
  }
  void run(const Call& call, const void* in, void* out) override {
    counted_[{membership().name, call.operation}] += call.bytes();
    if (call.operation != Operation::kAllGather) return;
    const auto part = static_cast<size_t>(call.bytes());
    for (int i = 0; i < size(); ++i) {
      std::byte* const to = static_cast<std::byte*>(out) + static_cast<size_t>(i) * part;
      if (to != in) std::memcpy(to, in, part);
    }
  }
  void exchange(std::span<const Transfer>) override {}

 private:
  CountedBytes& counted_;
};

// `counted` must outlive the group.
inline Group counting_group(int rank, int size, CountedBytes& counted) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(std::make_shared<CountingTransport>(Membership{"world", rank, std::move(ranks)},
                                                   std::make_shared<RankContext>(), counted));
}

}  // namespace megatron::comm
