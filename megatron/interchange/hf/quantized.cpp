#include "megatron/interchange/hf/quantized.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "megatron/core/parallel_for.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/hf/quantized/methods.h"

namespace megatron {
namespace {

struct Method {
  const char* name;
  std::shared_ptr<const Quantization> (*read)(HfBinding& fields);
};
constexpr Method kMethods[] = {
    {"gptq", read_gptq},   {"awq", read_awq}, {"compressed-tensors", read_compressed_tensors},
    {"mxfp4", read_mxfp4}, {"fp8", read_fp8}, {"bitsandbytes", read_bitsandbytes}};

// The tensors computed last: the pieces of one of our tensors read the same ones several times.
class RecentTensors {
 public:
  template <class Make>
  Tensor get(const std::string& name, const Make& make) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, tensor] : recent_) {
      if (known == name) return tensor;
    }
    recent_.emplace_back(name, make());
    bytes_ += recent_.back().second.bytes();
    while (recent_.size() > 1 && bytes_ > kMaxBytes) {
      bytes_ -= recent_.front().second.bytes();
      recent_.pop_front();
    }
    return recent_.back().second;
  }

 private:
  static constexpr int64_t kMaxBytes = int64_t{1} << 28;
  std::mutex mutex_;
  std::deque<std::pair<std::string, Tensor>> recent_;
  int64_t bytes_ = 0;
};

Tensor rounded(const QuantizedWeight& weight, std::span<const StoredTensor> stored, DType dtype) {
  std::vector<Tensor> parts;
  for (const StoredTensor& part : stored) parts.push_back(copy_of(whole_elements(part).view));
  const RowReader read = weight.open(parts);
  Tensor y(weight.shape, dtype, Stream{});
  if (y.numel() == 0) return y;
  constexpr int64_t kElements = 1 << 20;
  constexpr int64_t kRows = 16;
  const int64_t rows = weight.shape[0];
  const int64_t step = std::clamp<int64_t>(kElements / (y.numel() / rows), 1, kRows);
  parallel_for(rows, step, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += step) {
      const int64_t count = std::min(step, end - row);
      Tensor values(weight.shape.with(0, count), DType::kFloat32, Stream{});
      read(row, row + count, values.span<float>().data());
      Tensor target = y.slice(row, count);
      copy_into(target, values);
    }
  });
  return y;
}

}  // namespace

std::shared_ptr<const Quantization> read_quantization(HfBinding& fields) {
  constexpr const char* kMethod = "quant_method";
  HfBinding* config = fields.object("quantization_config");
  if (config == nullptr) return nullptr;
  config->ignore_others();
  const std::string name = config->text_of(kMethod, "");
  for (const Method& method : kMethods) {
    if (name == method.name) return method.read(*config);
  }
  std::vector<const char*> known;
  for (const Method& method : kMethods) known.push_back(method.name);
  config->unsupported(kMethod, fmt::format("the methods of quantization_config that are read are "
                                           "{}; use the original model",
                                           fmt::join(known, ", ")));
  return nullptr;
}

std::shared_ptr<const ShardedWeights> dequantized(
    const std::shared_ptr<const ShardedWeights>& folder, const Quantization& method, DType dtype) {
  StoredSection tensors = folder->tensors();
  const auto recent = std::make_shared<RecentTensors>();
  for (const QuantizedWeight& weight : method.weights(*folder)) {
    std::vector<StoredTensor> parts;
    for (const std::string& name : weight.parts) {
      parts.push_back(folder->tensors().at(name));
      tensors.erase(name);
    }
    for (const std::string& name : weight.unused) tensors.erase(name);
    tensors[weight.name] = tensor_in_one_piece(weight.shape, dtype, [=] {
      const Tensor y = recent->get(weight.name, [&] { return rounded(weight, parts, dtype); });
      return FileElements{y.view(), y};
    });
  }
  return std::make_shared<const ShardedWeights>(folder->path(), std::move(tensors));
}

}  // namespace megatron
