#pragma once

#include "megatron/comm/collectives.h"

namespace megatron::comm {

// all_to_all() as the other collectives that are started: beside the stream's other work.
Pending start_all_to_all(TensorView y, ConstView x, const Group& group, Stream stream);

}  // namespace megatron::comm
