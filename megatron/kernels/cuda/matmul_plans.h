#pragma once

#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>

#include "megatron/kernels/choice_file.h"
#include "megatron/kernels/cuda/matmul_plan.h"

namespace megatron::kernels::cuda {

// The cuBLASLt handle of a device, its plans and the scratch memory of its streams. A plan is made
// at the first use of its key and kept; after that a call costs one look-up. Thread safe.
//
// A large product uses the algorithm in the file of choices. If the file has none, and the stream
// searches algorithms and is not being captured, all algorithms of cuBLASLt are timed and the
// fastest is added to the file. Otherwise the plan uses the first algorithm that cuBLASLt offers.
class MatmulPlans {
 public:
  // Without a file of choices nothing is timed. The file must outlive this object.
  MatmulPlans(Device device, ChoiceFile* choices);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // The plans of a device; they live as long as the process. Their file is
  // choices_of_process().
  static MatmulPlans& of(Device device);

  cublasLtHandle_t handle() const { return handle_; }
  // The operands are those of the call; a search reads a, b and c, and may write d if beta is 0. A
  // large d to which the product adds is in host memory meanwhile.
  // Throws Unsupported if cuBLASLt has no algorithm.
  MatmulPlan plan(const MatmulKey& key, const MatmulOperands& operands, Stream stream);
  // The same for callers with an alternative: nothing if cuBLASLt has no algorithm.
  std::optional<MatmulPlan> find(const MatmulKey& key, const MatmulOperands& operands,
                                 Stream stream);
  // kCudaMatmulWorkspaceBytes for work on the stream, allocated at its first use.
  void* workspace(Stream stream);
  // At least `bytes` for intermediate results of work on the stream. A block that is too small is
  // released, unless a recorded graph may write to it; such blocks together are smaller than the
  // one in use.
  void* results(Stream stream, int64_t bytes);

 private:
  struct Entry {
    std::optional<MatmulPlan> plan;
    bool is_final = false;  // else a search may find a better plan
  };

  Entry made(const MatmulKey& key, const MatmulOperands& operands, Stream stream);
  // The index of the fastest algorithm; nothing if there is no memory for the search.
  std::optional<size_t> search(const MatmulPlan& plan, std::span<const cublasLtMatmulAlgo_t> offers,
                               MatmulOperands operands, int64_t result_bytes, Stream stream);

  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
    bool is_recorded = false;  // in use by a graph
  };

  Device device_;
  ChoiceFile* choices_;
  std::string machine_;  // algorithms depend on it, too
  cublasLtHandle_t handle_ = nullptr;
  std::shared_mutex mutex_;
  std::unordered_map<MatmulKey, Entry, MatmulKeyHash> plans_;
  std::unordered_map<void*, void*> workspaces_;  // by stream
  std::unordered_map<void*, Block> results_;     // by stream
};

// True if address and row stride are multiples of 16 bytes, as cuBLASLt's fast kernels need.
bool has_aligned_rows(const ConstView& x);

// c = product + beta * c + bias, in fp32, rounded once. product is null if it has no terms; bias is
// null if there is none.
//   c [m, n] out   product [m, n] in, fp32   bias [n] in
void add_bias(TensorView c, const float* product, ConstView bias, float beta, Stream stream);

}  // namespace megatron::kernels::cuda
