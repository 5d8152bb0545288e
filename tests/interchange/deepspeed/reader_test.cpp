#include "megatron/interchange/deepspeed/reader.h"

#include <gmock/gmock.h>

#include "megatron/core/error.h"
#include "megatron/formats/torch_writer.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using Named = std::vector<std::pair<std::string, Tensor>>;

class DeepSpeedReaderTest : public testing::Test {
 protected:
  void write(const std::string& name, const Named& tensors) const {
    TorchWriter writer(directory_.path() / name);
    writer.pickle().begin_ordered_dict();
    for (const auto& [key, tensor] : tensors) {
      writer.pickle().text(key);
      writer.tensor(tensor.dtype(), tensor.shape());
    }
    writer.pickle().end_ordered_dict();
    for (const auto& [key, tensor] : tensors) writer.write(tensor.view());
    writer.commit();
  }
  // One layer of a BLOOM on two ranks.
  void write_run() const {
    for (int rank = 0; rank < 2; ++rank) {
      const auto name = [&](const char* layer) {
        return "layer_" + std::string(layer) + "-model_0" + std::to_string(rank) +
               "-model_states.pt";
      };
      const float mean = rank == 0 ? 1.0f : 3.0f;
      write(name("01"), {{"word_embeddings.weight", words_.slice(4 * rank, 4)},
                         {"word_embeddings.norm.weight", full({6}, mean, DType::kFloat32, {})}});
      write(name("03"), {{"self_attention.query_key_value.weight", qkv_.slice(9 * rank, 9)},
                         {"self_attention.dense.bias", full({6}, mean, DType::kFloat32, {})}});
      write(name("05"), {{"weight", full({6}, mean, DType::kFloat32, {})}});
    }
    TorchWriter writer(directory_.path() / "mp_rank_00_model_states.pt");
    PickleWriter& pickle = writer.pickle();
    pickle.begin_dict();
    pickle.text("iteration"), pickle.integer(1000);
    pickle.text("args");
    pickle.begin_namespace();
    pickle.text("consumed_train_samples"), pickle.integer(64000);
    pickle.end_namespace();
    pickle.end_dict();
    writer.commit();
  }

  TemporaryDirectory directory_;
  Tensor words_ = random_normal({8, 6}, {.seed = 1});
  Tensor qkv_ = random_normal({18, 6}, {.seed = 2});
};

TEST_F(DeepSpeedReaderTest, JoinsShardsAndAveragesWhatIsReplicated) {
  write_run();
  const CheckpointContents run = open_deepspeed_checkpoint(directory_.path());
  EXPECT_EQ(run.iteration, 1000);
  EXPECT_EQ(run.consumed_train_samples, 64000);
  const StoredSection& weights = run.sections.at(kWeightsSection);
  EXPECT_EQ(weights.size(), 5u);
  expect_identical(read_whole(weights.at("embedding.word_embeddings.weight")), words_);
  expect_identical(read_whole(weights.at("decoder.layers.0.self_attention.linear_qkv.weight")),
                   qkv_);
  const Tensor two = full({6}, 2.0f, DType::kFloat32, {});
  for (const char* name : {"embedding.norm.weight", "decoder.final_layernorm.weight",
                           "decoder.layers.0.self_attention.linear_proj.bias"}) {
    expect_identical(read_whole(weights.at(name)), two);
  }
}

TEST_F(DeepSpeedReaderTest, NoticesMissingFiles) {
  write_run();
  std::filesystem::remove(directory_.path() / "layer_03-model_01-model_states.pt");
  EXPECT_THAT(message_of<FormatError>([&] { open_deepspeed_checkpoint(directory_.path()); }),
              HasSubstr("layer 3 does not have the files of 2 ranks"));
  std::filesystem::remove(directory_.path() / "layer_03-model_00-model_states.pt");
  EXPECT_THAT(message_of<FormatError>([&] { open_deepspeed_checkpoint(directory_.path()); }),
              HasSubstr("not all of them"));
  std::filesystem::remove(directory_.path() / "mp_rank_00_model_states.pt");
  EXPECT_THAT(message_of<FormatError>([&] { open_deepspeed_checkpoint(directory_.path()); }),
              HasSubstr("it has the arguments of the run"));
}

}  // namespace
}  // namespace megatron
