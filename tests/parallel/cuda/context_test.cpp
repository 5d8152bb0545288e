#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/device/allocator.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "megatron/parallel/context/attention.h"
#include "tests/support/tensors.h"

// Attention over ranks that are threads, each with a stream, on all GPUs in turn, against attention
// of one rank on the CPU.
namespace megatron {
namespace {

constexpr int64_t kHeads = 12;
constexpr int64_t kHeadSize = 64;

Tensor own_chunks(const Tensor& whole, const ContextParallel& cp) {
  const int64_t length = whole.size(0) / (2 * cp.size());
  Tensor own(whole.shape().with(0, 2 * length), whole.dtype(), Stream{});
  for (size_t half = 0; half < 2; ++half) {
    Tensor to = own.slice(static_cast<int64_t>(half) * length, length);
    copy_into(to, whole.slice(cp.chunks()[half] * length, length));
  }
  return own;
}

ContextParallel context_of(const comm::Group& world, ContextExchange exchange) {
  std::vector<int> falling;
  for (int rank = world.size() - 1; rank >= 0; --rank) falling.push_back(rank);
  return {world, world.subgroup("mirrored", falling), exchange};
}

// Documents of 70 tokens.
int32_t start_of(int64_t i) { return static_cast<int32_t>(i / 70 * 70); }

// shape [.., samples, length]
Tensor starts_of(const std::vector<int64_t>& chunks, int64_t length, const Shape& shape) {
  std::vector<int32_t> starts;
  for (const int64_t chunk : chunks) {
    for (int64_t batch = 0; batch < shape[shape.rank() - 2]; ++batch) {
      for (int64_t i = 0; i < length; ++i) starts.push_back(start_of(chunk * length + i));
    }
  }
  return tensor_of(starts, shape);
}

// Parameters: ranks, how keys meet queries, and the length of a chunk: that of whole tiles, or one
// whose dropout only kernels without tensor cores draw.
class ContextCudaTest
    : public testing::TestWithParam<std::tuple<int, ContextExchange, int64_t, DType>> {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
};

TEST_P(ContextCudaTest, AttentionIsThatOfOneCpuRank) {
  const auto [ranks, exchange, length, dtype] = GetParam();
  const int64_t s = 2 * ranks * length;
  Tolerance close{2e-5, 2e-5};
  if (dtype != DType::kFloat32) {
    close = tolerance_of(dtype);
    close.absolute += 4 * close.relative;
  }
  for (const bool has_documents : {false, true}) {
    for (const float dropout : {0.0f, 0.3f}) {
      // Halves of two samples are samples; those of one are heads.
      for (const auto& [batch, groups] :
           {std::pair<int64_t, int64_t>{2, 12}, {2, ranks}, {1, 12}}) {
        if (batch == 1 && (has_documents || dropout > 0)) continue;
        SCOPED_TRACE(std::to_string(batch) + " samples, " + std::to_string(groups) + " groups" +
                     (has_documents ? ", documents" : "") + (dropout > 0 ? ", dropout" : ""));
        const Tensor x = random_normal({s, batch, (kHeads + 2 * groups) * kHeadSize},
                                       {.seed = 1, .dtype = dtype});
        const Tensor dy =
            random_normal({s, batch, kHeads * kHeadSize}, {.seed = 2, .dtype = dtype});
        AttentionOptions options{.num_heads = kHeads,
                                 .num_query_groups = groups,
                                 .dropout = {.key = 9, .first_sample = 3, .probability = dropout}};
        AttentionOptions of_whole = options;
        if (has_documents) of_whole.document_starts = starts_of({0}, s, {batch, s});
        const Variable want_x = Variable::leaf(x);
        const Variable want_y = attention(want_x, of_whole);
        backward(want_y, dy);
        comm::run_ranks(ranks, [&, ranks = ranks, batch = batch, exchange = exchange,
                                length = length](const comm::Group& world) {
          const Device device{DeviceType::kCuda, world.rank() % num_cuda_devices()};
          use_device(device);
          const OwnedStream queue(device);
          const MemoryPool pool(allocator_of(device));  // threads may share a GPU
          const PoolScope scope(&pool);
          const Stream stream = queue.get();
          const ContextParallel cp = context_of(world, exchange);
          AttentionOptions own = options;
          if (has_documents) {
            const auto [first, second] = cp.chunks();
            own.document_starts = (exchange == ContextExchange::kAllToAll
                                       ? starts_of({0}, s, {batch, s})
                                       : starts_of({first, second}, length, {2, batch, length}))
                                      .to(stream);
          }
          const Variable input = Variable::leaf(own_chunks(x, cp).to(stream));
          const Variable y = context_parallel_attention(input, own, cp);
          backward(y, own_chunks(dy, cp).to(stream));
          expect_close(y.data().to(Stream{}), own_chunks(want_y.data(), cp), close, "y");
          expect_close(input.grad().to(Stream{}), own_chunks(want_x.grad(), cp), close, "dqkv");
          synchronize(stream);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ContextCudaTest,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::Values(ContextExchange::kP2p,
                                                          ContextExchange::kAllGather,
                                                          ContextExchange::kAllToAll),
                                          testing::Values(64, 41),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)));

}  // namespace
}  // namespace megatron
