#include "megatron/cli/retro_preprocess.h"
#include "megatron/core/error.h"

namespace megatron::cli {

int retro_preprocess(std::span<const std::string>, const comm::Group&) {
  throw Unsupported(
      "retro-preprocess needs FAISS and HDF5, and this program was built without them; build it "
      "with -DMG_RETRO=ON");
}

}  // namespace megatron::cli
