#pragma once

#include <memory>
#include <span>

#include "megatron/comm/threads/thread_group.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// Transport between ranks that are threads of this process and access each other's memory.
// REQUIRES: `world` outlives it.
class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadWorld& world, Membership membership);

  std::shared_ptr<Transport> subgroup(Membership membership) override;
  void run(const Call& call, const void* in, void* out) override;
  void exchange(std::span<const Transfer> transfers) override;
  std::optional<std::string> failure() const override;
  std::string last_call(int member) const override;
  void print_flight_records() const override { world_.print_flight_records(); }
  ThreadGroup* threads() override { return &group_; }

 private:
  ThreadWorld& world_;
  ThreadGroup& group_;
};

}  // namespace megatron::comm
