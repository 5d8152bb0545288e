#include "megatron/comm/transport.h"

#include <fmt/format.h>

#include "megatron/comm/pending_state.h"
#include "megatron/comm/reduce.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::comm {
namespace {

class SelfTransport final : public Transport {
 public:
  using Transport::Transport;
  std::shared_ptr<Transport> subgroup(Membership) override { throw alone(); }
  void run(const Call& call, const void* in, void* out) override {
    copy_host(out, in, call.bytes());
  }
  void exchange(std::span<const Transfer>) override { throw alone(); }

 private:
  InternalError alone() const {
    return InternalError("group " + membership().name + " of one rank was asked to communicate");
  }
};

}  // namespace

DeviceTransport::DeviceTransport() : pending_states_(std::make_unique<PendingStates>()) {}
DeviceTransport::~DeviceTransport() = default;

Call call_of(const Transfer& transfer) {
  return {transfer.is_send ? Operation::kSend : Operation::kRecv, transfer.view.dtype,
          transfer.view.numel(), Reduce::kSum, transfer.peer};
}

Transport::Transport(Membership membership, std::shared_ptr<RankContext> context)
    : membership_(std::move(membership)), context_(std::move(context)) {}

Transport::~Transport() = default;

bool Transport::may_keep_waiting(std::chrono::steady_clock::time_point begin) {
  return std::chrono::steady_clock::now() - begin <= context_->timeout.load();
}

std::string Transport::last_call(int member) const {
  return member == rank() ? context_->recorder.last() : "not known to this rank";
}

void Transport::print_flight_records() const {
  const LogScope aloud(true);  // only this rank knows these calls
  warn(fmt::format("the last calls of {} (number, group, call, state):\n{}", name_of(rank()),
                   context_->recorder.str()));
}

std::string Transport::name_of(int member) const {
  const int world_rank = membership_.world_ranks[static_cast<size_t>(member)];
  const std::vector<std::string>& hosts = context_->hosts;
  return fmt::format("rank {} (rank {} of the world){}", member, world_rank,
                     hosts.empty() ? "" : " on " + hosts[static_cast<size_t>(world_rank)]);
}

std::string Transport::name_of(const Call& call) const {
  return fmt::format("{} in group {}", call.str(), membership_.name);
}

std::shared_ptr<Transport> make_self_transport(Membership membership) {
  return std::make_shared<SelfTransport>(std::move(membership), std::make_shared<RankContext>());
}

}  // namespace megatron::comm
