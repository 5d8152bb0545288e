#include "megatron/kernels/cuda/matmul_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/allocator.h"
#include "megatron/device/memory.h"
#include "megatron/device/staging.h"
#include "megatron/kernels/algorithm_choice.h"
#include "megatron/kernels/cuda/algorithm_search.h"
#include "megatron/kernels/cuda/matmul_search.h"

namespace megatron::kernels::cuda {
namespace {

// The search does not pay for smaller products, such as those that generate a token.
constexpr double kSmallFlops = 1e9;
constexpr int kMaxOffers = 16;
constexpr int kRounds = 3;
// The most device memory of a search: training is at its peak where the output layer's gradient
// is first computed.
constexpr int64_t kMostSearchBytes = int64_t{64} << 20;

bool is_small(const MatmulKey& key) {
  return 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) *
             static_cast<double>(key.k) <
         kSmallFlops;
}

// A block of device memory, released in the order of the stream's work.
class Scratch {
 public:
  Scratch(int64_t bytes, Device device)
      : allocator_(allocator_of(device)),
        data_(allocator_.allocate(bytes, MemoryCategory::kWorkspace)) {}
  ~Scratch() { allocator_.release(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }

 private:
  CachingAllocator& allocator_;
  void* data_;
};

}  // namespace

MatmulPlans::MatmulPlans(Device device, ChoiceFile* choices) : device_(device), choices_(choices) {
  machine_ = fmt::format("{}, cuBLAS {}", machine_of(device), cublasLtGetVersion());
  MG_CUBLAS(cublasLtCreate(&handle_));
}

MatmulPlans::~MatmulPlans() { cublasLtDestroy(handle_); }

MatmulPlans& MatmulPlans::of(Device device) {
  // Never destroyed: the CUDA runtime may be unloaded before static objects are destroyed.
  static std::mutex mutex;
  static auto& all = *new std::unordered_map<int, std::unique_ptr<MatmulPlans>>();
  const std::lock_guard lock(mutex);
  auto& plans = all[device.index];
  if (plans == nullptr) plans = std::make_unique<MatmulPlans>(device, choices_of_process());
  return *plans;
}

MatmulPlan MatmulPlans::plan(const MatmulKey& key, const MatmulOperands& operands, Stream stream) {
  if (const auto found = find(key, operands, stream)) return *found;
  throw Unsupported(
      fmt::format("matmul: cuBLASLt has no algorithm for {}; please report this", text_of(key)));
}

std::optional<MatmulPlan> MatmulPlans::find(const MatmulKey& key, const MatmulOperands& operands,
                                            Stream stream) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end() && (found->second.is_final || !may_search(stream))) {
      return found->second.plan;
    }
  }
  const Entry entry = made(key, operands, stream);
  const std::unique_lock lock(mutex_);
  Entry& place = plans_[key];
  if (!place.is_final) place = entry;
  return place.plan;
}

MatmulPlans::Entry MatmulPlans::made(const MatmulKey& key, const MatmulOperands& operands,
                                     Stream stream) {
  MatmulPlan plan = described(key, operands);
  ChoiceFile* const file = is_small(key) ? nullptr : choices_;
  const std::string question = machine_ + ": " + text_of(key);
  const auto take = [&](const std::optional<std::string>& choice) {
    const auto algorithm = choice ? decoded(*choice) : std::nullopt;
    if (!algorithm || !is_usable(handle_, plan, *algorithm)) return false;
    plan.algorithm = *algorithm;
    return true;
  };
  if (file != nullptr && take(file->find(question))) return {plan, true};

  const auto offers = offered_algorithms(handle_, plan, key, kMaxOffers);
  if (offers.empty()) return {std::nullopt, true};
  plan.algorithm = offers.front();
  if (file == nullptr) return {plan, true};
  if (!may_search(stream)) return {plan, false};

  const int64_t result_bytes = key.m * key.n * size_of(key.out);
  const auto best = search(plan, offers, operands, result_bytes, stream);
  if (best && !take(file->remember(question, encoded(offers[*best])))) {
    warn(fmt::format("matmul: cuBLASLt rejects the stored algorithm of {}; using its first offer",
                     text_of(key)));
  }
  return {plan, true};
}

std::optional<size_t> MatmulPlans::search(const MatmulPlan& plan,
                                          std::span<const cublasLtMatmulAlgo_t> offers,
                                          MatmulOperands operands, int64_t result_bytes,
                                          Stream stream) {
  // A product that accumulates may run many times in the search but change its result only once.
  std::optional<Scratch> scratch;
  std::unique_ptr<std::byte[]> result;  // in host memory meanwhile
  const bool accumulates = operands.beta != 0;
  if (accumulates && operands.c == operands.d && result_bytes > kMostSearchBytes) {
    result = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(result_bytes));
    copy_bytes(result.get(), operands.d, result_bytes, stream);
  } else if (accumulates) {
    try {
      scratch.emplace(result_bytes, device_);
    } catch (const DeviceError&) {
      debug("matmul: no memory to search for an algorithm; using cuBLASLt's first offer");
      return std::nullopt;
    }
    operands.d = scratch->data();
  }
  const auto ms = measured_ms(handle_, plan, offers, operands, workspace(stream), kRounds, stream);
  if (result != nullptr) upload_bytes(operands.d, result.get(), result_bytes, stream);
  const size_t best = fastest(ms);
  debug(fmt::format("matmul: algorithm {} of {}, {:.4f} ms; the first {:.4f} ms", best,
                    offers.size(), ms[best], ms.front()));
  return best;
}

void* MatmulPlans::workspace(Stream stream) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = workspaces_.find(stream.native);
    if (found != workspaces_.end()) return found->second;
  }
  const std::unique_lock lock(mutex_);
  void*& workspace = workspaces_[stream.native];
  if (workspace == nullptr) {
    workspace =
        allocator_of(device_).allocate(kCudaMatmulWorkspaceBytes, MemoryCategory::kWorkspace);
  }
  return workspace;
}

void* MatmulPlans::results(Stream stream, int64_t bytes) {
  const std::unique_lock lock(mutex_);
  Block& block = results_[stream.native];
  if (block.bytes < bytes) {
    CachingAllocator& memory = allocator_of(device_);
    const int64_t size = std::max(bytes, block.is_recorded ? 2 * block.bytes : 0);
    if (block.data != nullptr && !block.is_recorded) memory.release(block.data);
    block = {};
    block.data = memory.allocate(size, MemoryCategory::kWorkspace);
    block.bytes = size;
  }
  block.is_recorded = block.is_recorded || is_recorded(stream);
  return block.data;
}

}  // namespace megatron::kernels::cuda
