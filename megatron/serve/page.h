#pragma once

namespace megatron::serve {

// The web page: one self-contained file.
extern const char* const kPage;

}  // namespace megatron::serve
