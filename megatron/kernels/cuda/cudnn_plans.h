#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "megatron/device/device.h"

// cuDNN execution plans of the attention that cudnn_attention.h offers. A plan is built at the
// first use of its key and cached.
//
// Forward attention has several plans. A large call whose stream searches algorithms (and is not
// being recorded) times them at its first run, and keeps the fastest in the file of choices
// (algorithm_choice.h), as products do; later runs read it. Otherwise cuDNN's first offer is taken.
// A choice needs no more scratch memory than that.
namespace megatron::kernels::cuda {

// The strides, in elements, of [batch, head, token, channel]; channels are adjacent.
struct CudnnLayout {
  int64_t batch = 0, head = 0, token = 0;
  bool operator==(const CudnnLayout& other) const = default;
};

// The tensors of a call, as cuDNN counts them.
enum CudnnTensor { kQ, kK, kV, kOut, kDout, kDq, kDk, kDv, kNumTensors, kStats = kNumTensors };

// Everything that a plan depends on. Integers only, so that its bytes can be hashed.
struct CudnnKey {
  int64_t is_backward = 0;
  int64_t dtype = 0;
  int64_t batches = 0, heads = 0, groups = 0, sq = 0, sk = 0, d = 0;
  int64_t is_causal = 0;  // the last query sees all keys, each one before it one fewer
  int64_t window = 0;     // of the causal mask; 0: none
  int64_t scale_bits = 0;
  int64_t is_deterministic = 0;
  std::array<CudnnLayout, kNumTensors> layouts{};

  bool operator==(const CudnnKey& other) const = default;
};

// The addresses of a call's tensors.
using CudnnPointers = std::unordered_map<int64_t, void*>;

// True if the library is installed; warns once if it is not.
bool has_cudnn_library();

// The scratch memory of a call; nothing if cuDNN has no plan for it, of which a warning gives the
// reason once.
std::optional<int64_t> planned_workspace_bytes(const CudnnKey& key, Stream stream);

// Queues the call. Returns false if cuDNN has no plan for it. A search runs it several times and
// waits for the device.
bool run_planned(const CudnnKey& key, CudnnPointers pointers, void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda
