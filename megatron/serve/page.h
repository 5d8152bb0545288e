#pragma once

namespace megatron::serve {

// The page for people: one file that needs nothing from the network.
extern const char* const kPage;

}  // namespace megatron::serve
