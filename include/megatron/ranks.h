#pragma once

#include <memory>

namespace megatron::comm {
class Group;
}

namespace megatron::api {

// All ranks of a run, as one of them sees them. A default-constructed World is one rank alone.
class World {
 public:
  World();
  explicit World(const comm::Group& group);

  int rank() const;
  int size() const;
  const comm::Group& group() const { return *group_; }

 private:
  std::shared_ptr<const comm::Group> group_;
};

using RankFunction = void (*)(void* context, const World& world);
// Calls f(context, world) on `count` ranks, each a thread of this process. If a rank throws, the
// others are released, and the exception is rethrown here. No World may outlive the call.
void run_ranks(int count, RankFunction f, void* context);

// The same for f(world) of any callable.
template <class F>
void run_ranks(int count, F f) {
  run_ranks(
      count, [](void* context, const World& world) { (*static_cast<F*>(context))(world); }, &f);
}

}  // namespace megatron::api
