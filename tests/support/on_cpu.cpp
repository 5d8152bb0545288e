#include "tests/support/device_under_test.h"

namespace megatron {

bool has_device_under_test() { return true; }
Stream stream_under_test() { return {}; }

}  // namespace megatron
