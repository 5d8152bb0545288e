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

// The cuBLASLt handle of a device, the plans made so far and the scratch memory of its streams. A
// plan is made at the first use of its key and kept; afterwards a call costs one look-up. Thread
// safe.
//
// The algorithm of a plan is, if the product is large: that which the file of choices names, or the
// fastest of those that cuBLASLt offers, timed where the stream searches algorithms and is not
// being captured, and then added to the file. Else it is the first that cuBLASLt offers.
class MatmulPlans {
 public:
  // Without a file of choices nothing is searched. The file must outlive this.
  MatmulPlans(Device device, ChoiceFile* choices);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // Those of a device; they live as long as the process. Their file is matmul.txt in
  // cache_directory(), or what MEGATRON_MATMUL_CACHE names; none if that is "off".
  static MatmulPlans& of(Device device);

  cublasLtHandle_t handle() const { return handle_; }
  // The operands are those of the call; a search reads a, b and c, and may write d if beta is 0.
  // Throws Unsupported when cuBLASLt knows no algorithm.
  MatmulPlan plan(const MatmulKey& key, const MatmulOperands& operands, Stream stream);
  // The same, for callers that know another way: nothing when cuBLASLt knows no algorithm.
  std::optional<MatmulPlan> find(const MatmulKey& key, const MatmulOperands& operands,
                                 Stream stream);
  // kCudaMatmulWorkspaceBytes for work on the stream, allocated at its first use.
  void* workspace(Stream stream);
  // At least `bytes` for a result on its way, for work on the stream. A block that was too small is
  // given back, unless a recorded graph may write to it; such blocks together are smaller than the
  // one in use.
  void* results(Stream stream, int64_t bytes);

 private:
  struct Entry {
    std::optional<MatmulPlan> plan;
    bool is_final = false;  // else a stream that searches may find better
  };

  Entry made(const MatmulKey& key, const MatmulOperands& operands, Stream stream);
  // The index of the fastest; nothing when there is no memory to search with.
  std::optional<size_t> search(const MatmulPlan& plan, std::span<const cublasLtMatmulAlgo_t> offers,
                               MatmulOperands operands, int64_t result_bytes, Stream stream);

  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
    bool is_recorded = false;  // a graph has it
  };

  Device device_;
  ChoiceFile* choices_;
  std::string machine_;  // what algorithms depend on besides the key
  cublasLtHandle_t handle_ = nullptr;
  std::shared_mutex mutex_;
  std::unordered_map<MatmulKey, Entry, MatmulKeyHash> plans_;
  std::unordered_map<void*, void*> workspaces_;  // by stream
  std::unordered_map<void*, Block> results_;     // by stream
};

// Do address and rows suit accesses of 16 bytes, which cuBLASLt's fast kernels make?
bool has_aligned_rows(const ConstView& x);

// c = product + beta * c + bias, in fp32, rounded once. Where the product has no terms, product is
// null; so is bias where there is none.
//   c [m, n] out   product [m, n] in, fp32   bias [n] in
void add_bias(TensorView c, const float* product, ConstView bias, float beta, Stream stream);

}  // namespace megatron::kernels::cuda
