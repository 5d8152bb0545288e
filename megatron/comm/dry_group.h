#pragma once

#include "megatron/comm/group.h"

namespace megatron::comm {

// The world of a dry run, as its rank `rank` sees it: the other `size - 1` ranks do not exist, no
// call waits for them, and nothing arrives. A sum of host memory is this rank's own, and gathered
// parts are all equal to it.
Group dry_group(int rank, int size);

}  // namespace megatron::comm
