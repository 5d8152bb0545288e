#include "megatron/comm/working.h"

#include <utility>

#include "megatron/comm/transport.h"

namespace megatron::comm {

Working::Working(const Group& group, std::string what) : context_(group.transport().shared()) {
  context_->activity.begin(std::move(what));
}

Working::~Working() { context_->activity.end(); }

}  // namespace megatron::comm
