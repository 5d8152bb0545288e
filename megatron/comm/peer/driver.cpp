#include "megatron/comm/peer/driver.h"

#include "megatron/device/lazy_library.h"

namespace megatron::comm::peer {

const Driver& driver() {
  static const Driver functions = [] {
    const LazyLibrary file("libcuda.so.1", "install the driver of the GPU");
    const auto find = [&file]<class F>(F& function, const char* name) {
      function = file.function<F>(name);
    };
    Driver found;
    find(found.pointer_attributes, "cuPointerGetAttributes");
    find(found.write_value, "cuStreamWriteValue64_v2");
    find(found.wait_value, "cuStreamWaitValue64_v2");
    find(found.batch, "cuStreamBatchMemOp_v2");
    return found;
  }();
  return functions;
}

}  // namespace megatron::comm::peer
