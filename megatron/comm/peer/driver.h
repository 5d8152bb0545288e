#pragma once

#include <cuda.h>

namespace megatron::comm::peer {

// Functions of the driver that the runtime lacks.
struct Driver {
  decltype(&cuPointerGetAttributes) pointer_attributes = nullptr;
  decltype(&cuStreamWriteValue64) write_value = nullptr;
  decltype(&cuStreamWaitValue64) wait_value = nullptr;
  decltype(&cuStreamBatchMemOp) batch = nullptr;  // of waits
};

// Loads the driver at the first call. Throws DeviceError.
const Driver& driver();

}  // namespace megatron::comm::peer
