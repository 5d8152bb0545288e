#include "megatron/ranks.h"

#include "megatron/comm/group.h"
#include "megatron/comm/threads.h"

namespace megatron::api {

World::World() : World(comm::Group()) {}
World::World(const comm::Group& group) : group_(std::make_shared<const comm::Group>(group)) {}

int World::rank() const { return group_->rank(); }
int World::size() const { return group_->size(); }

void run_ranks(int count, RankFunction f, void* context) {
  comm::run_ranks(count, [&](const comm::Group& group) { f(context, World(group)); });
}

}  // namespace megatron::api
