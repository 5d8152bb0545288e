// Modules with buffers, from one layout of ranks to another.
#include <gtest/gtest.h>

#include "megatron/checkpoint/chunks.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/save.h"
#include "megatron/nn/module.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// A weight whose rows are divided among ranks, and a history that each of them keeps.
class Scaled final : public Module {
 public:
  Scaled(int64_t rank, int64_t ranks)
      : weight(add_parameter("weight", {4 / ranks, 3},
                             {.role = ParameterRole::kMatrix,
                              .init = Init::normal(1),
                              .sharding = {{.axis = 0, .index = rank, .count = ranks}}},
                             {DType::kBFloat16, Stream{}})),
        history(add_buffer("history", {5}, DType::kFloat32, Init::zeros(), Stream{})) {
    initialize(*this, 1);
  }

  Variable weight;
  Tensor history;
};

TEST(ModuleCheckpointTest, BuffersAreSavedAndLoadedLikeParameters) {
  const TemporaryDirectory directory;
  Scaled trained(0, 1);
  for (int64_t i = 0; i < 5; ++i) {
    trained.history.span<float>()[static_cast<size_t>(i)] = 0.1f * static_cast<float>(i);
  }
  const Tensor want = copied(trained.history);
  CheckpointState state;
  state.iteration = 7;
  state.model = chunks_to_save(trained, [](const ParameterInfo&) { return true; });
  ASSERT_EQ(state.model.size(), 2u);
  save_checkpoint(directory.path(), state);

  for (int64_t rank = 0; rank < 2; ++rank) {
    Scaled loaded(rank, 2);
    CheckpointState here;
    here.model = chunks_of(loaded);
    load_checkpoint(directory.path() / "iter_0000007", here);
    expect_identical(loaded.history, want);
    expect_identical(loaded.weight.data(), trained.weight.data().slice(2 * rank, 2));
  }
}

// Every tensor-parallel rank has a buffer; one of them saves it.
TEST(ModuleCheckpointTest, TheFirstRankSavesBuffers) {
  const Scaled first(0, 2);
  const Scaled second(1, 2);
  const auto is_divided = [](const ParameterInfo& info) { return info.shared_axes().empty(); };
  EXPECT_EQ(chunks_to_save(first, [](const ParameterInfo&) { return true; }).size(), 2u);
  const std::vector<CheckpointTensor> saved = chunks_to_save(second, is_divided);
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(saved[0].name, "weight");
}

}  // namespace
}  // namespace megatron
