// Experts in Megatron Core's checkpoints of the format torch: a file of each tensor-parallel rank
// has a part of each expert.
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "megatron/core/error.h"
#include "megatron/formats/torch_file.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/interchange/megatron/reader.h"
#include "megatron/interchange/megatron/writer.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_data.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr const char* kGoldenExperts = "golden/moe/ckpt/dsv3-torch/iter_0000010";

CheckpointContents contents_at(const std::filesystem::path& directory) {
  const MegatronCheckpoint checkpoint(directory);
  CheckpointContents contents = checkpoint.contents(checkpoint.args());
  // Fp32 weights are main parameters; a buffer among them is none.
  std::erase_if(contents.sections.at(kMainParamSection),
                [](const auto& entry) { return entry.first.ends_with(".expert_bias"); });
  return contents;
}

void expect_equal_contents(const CheckpointContents& got, const CheckpointContents& want) {
  ASSERT_EQ(got.sections.size(), want.sections.size());
  for (const auto& [section, tensors] : want.sections) {
    ASSERT_EQ(got.sections.at(section).size(), tensors.size()) << section;
    for (const auto& [name, tensor] : tensors) {
      expect_identical(read_whole(got.sections.at(section).at(name)), read_whole(tensor),
                       section + " of " + name);
    }
  }
}

// Bytes of the tensors that a file has under "model".
std::map<std::string, std::string> model_of(const std::filesystem::path& file) {
  const TorchFile opened(file);
  std::map<std::string, std::string> model;
  for (const auto& [path, value] : flattened(*opened.root().find("model"))) {
    std::string& text = model[path];
    const PyTensor* tensor = value.tensor();
    if (tensor == nullptr) continue;
    const FileElements elements = opened.elements(*tensor);
    text = elements.view.shape.str() + std::string(static_cast<const char*>(elements.view.data),
                                                   static_cast<size_t>(elements.view.bytes()));
  }
  return model;
}

TEST(ExpertFilesTest, AreThoseOfMegatronCore) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const std::filesystem::path golden = shared_data(kGoldenExperts);
  const TemporaryDirectory directory;
  write_megatron_files(directory.path(), contents_at(golden), {.naming = MegatronNaming::kCore});
  const auto want = model_of(golden / "mp_rank_00/model_optim_rng.pt");
  const auto got = model_of(directory.path() / "mp_rank_00/model_optim_rng.pt");
  for (const auto& [path, elements] : want) {
    ASSERT_TRUE(got.contains(path)) << path;
    EXPECT_TRUE(got.at(path) == elements) << path;
  }
  EXPECT_EQ(got.size(), want.size());
}

// Files of any number of tensor- and pipeline-parallel ranks, with the optimizer's state.
TEST(ExpertFilesTest, OfAllRanksTogetherAreTheWhole) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const CheckpointContents want = contents_at(shared_data(kGoldenExperts));
  for (const auto& [tensor, pipeline] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {2, 2}}) {
    for (const bool is_distributed : {false, true}) {
      CheckpointContents saved = want;
      saved.args["tensor_model_parallel_size"] = tensor;
      saved.args["pipeline_model_parallel_size"] = pipeline;
      const TemporaryDirectory directory;
      write_megatron_files(directory.path(), saved,
                           {.naming = MegatronNaming::kCore,
                            .tensor_model_parallel_size = tensor,
                            .pipeline_model_parallel_size = pipeline,
                            .use_distributed_optimizer = is_distributed});
      SCOPED_TRACE(std::to_string(tensor) + " x " + std::to_string(pipeline));
      expect_equal_contents(contents_at(directory.path()), want);
    }
  }
}

TEST(ExpertFilesTest, OfTheOlderModelsAreRefused) {
  MG_NEEDS_SHARED("golden/moe/flags.sh");
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of<ConfigError>([&] {
                write_megatron_files(directory.path(), contents_at(shared_data(kGoldenExperts)),
                                     {.naming = MegatronNaming::kLegacy});
              }),
              testing::HasSubstr("experts have no place in the files of --save-format megatron"));
}

}  // namespace
}  // namespace megatron
