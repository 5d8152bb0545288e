#include "megatron/interchange/deepspeed/reader.h"

#include <gmock/gmock.h>

#include "megatron/checkpoint/directory.h"
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

// The whole tensors of a universal checkpoint.
class UniversalCheckpointTest : public testing::Test {
 protected:
  void write(const std::string& parameter, const Tensor& tensor, bool is_padded = false) const {
    const auto folder = directory_.path() / "zero" / parameter;
    std::filesystem::create_directories(folder);
    float factor = 1;
    for (const char* kind : {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"}) {
      const Tensor scaled = scaled_by(tensor, factor++);
      const Tensor padding = full({tensor.size(-1)}, 5.0f, DType::kFloat32, {});
      TorchWriter writer(folder / kind);
      writer.pickle().begin_dict();
      writer.pickle().text("param"), writer.tensor(scaled.dtype(), scaled.shape());
      if (is_padded) {
        writer.pickle().text("vocab_divisibility_padding_tensor");
        writer.tensor(padding.dtype(), padding.shape());
      }
      writer.pickle().end_dict();
      writer.write(scaled.view());
      if (is_padded) writer.write(padding.view());
      writer.commit();
    }
  }
  static Tensor scaled_by(const Tensor& tensor, float factor) {
    Tensor scaled = copy_of(tensor.view());
    scale_inplace(scaled, factor);
    return scaled;
  }
  void write_settings() const {
    TorchWriter writer(directory_.path() / "mp_rank_00_model_states.pt");
    PickleWriter& pickle = writer.pickle();
    pickle.begin_dict();
    pickle.text("iteration"), pickle.integer(1000);
    pickle.text("args");
    pickle.begin_namespace();
    pickle.text("padded_vocab_size"), pickle.integer(8);
    pickle.text("weight_decay"), pickle.number(0.1);
    pickle.end_namespace();
    pickle.text("lr_scheduler"), pickle.begin_dict();
    pickle.text("warmup_steps"), pickle.integer(10);
    pickle.text("decay_style"), pickle.text("cosine");
    pickle.end_dict();
    pickle.end_dict();
    writer.commit();
  }

  TemporaryDirectory directory_;
};

TEST_F(UniversalCheckpointTest, HasWeightsAndMoments) {
  const Tensor words = random_normal({7, 6}, {.seed = 1});
  const Tensor qkv = random_normal({18, 6}, {.seed = 2});
  const Tensor norm = random_normal({6}, {.seed = 3});
  write("tied_modules.embed.word_embeddings.weight", words, true);
  write("3.self_attention.query_key_value.weight", qkv);
  write("5.weight", norm);
  write_settings();
  EXPECT_EQ(format_of(directory_.path()), CheckpointFormat::kDeepSpeed);
  const CheckpointContents run = open_deepspeed_checkpoint(directory_.path());
  EXPECT_EQ(run.iteration, 1000);
  EXPECT_TRUE(run.has_optimizer());
  float factor = 1;
  for (const char* section : {kMainParamSection, "exp_avg", "exp_avg_sq"}) {
    const StoredSection& tensors = run.sections.at(section);
    ASSERT_EQ(tensors.size(), 3u) << section;
    const Tensor found = read_whole(tensors.at("embedding.word_embeddings.weight"));
    expect_identical(found.slice(0, 7), scaled_by(words, factor));
    expect_identical(found.slice(7, 1), full({1, 6}, 5.0f, DType::kFloat32, {}));
    expect_identical(read_whole(tensors.at("decoder.layers.0.self_attention.linear_qkv.weight")),
                     scaled_by(qkv, factor));
    expect_identical(read_whole(tensors.at("decoder.final_layernorm.weight")),
                     scaled_by(norm, factor));
    ++factor;
  }
  EXPECT_EQ(run.sections.at(kWeightsSection).size(), 3u);
  const ArgMap& schedule = run.scalars.at("opt_param_scheduler");
  EXPECT_EQ(schedule.at("lr_warmup_steps"), ArgValue(int64_t{10}));
  EXPECT_EQ(schedule.at("lr_decay_style"), ArgValue(std::string("cosine")));
  EXPECT_EQ(schedule.at("start_wd"), ArgValue(0.1));
}

TEST_F(UniversalCheckpointTest, NamesWhatIsNoParameter) {
  write("5.weight", full({6}, 1.0f, DType::kFloat32, {}));
  write_settings();
  write("optimizer", full({6}, 1.0f, DType::kFloat32, {}));
  EXPECT_THAT(message_of<Unsupported>([&] { open_deepspeed_checkpoint(directory_.path()); }),
              HasSubstr("zero: a GPT of this program has no optimizer"));
  std::filesystem::remove_all(directory_.path() / "zero/optimizer");
  write("4.strange.weight", full({6}, 1.0f, DType::kFloat32, {}));
  EXPECT_THAT(message_of<Unsupported>([&] { open_deepspeed_checkpoint(directory_.path()); }),
              HasSubstr("has no 4.strange.weight"));
}

}  // namespace
}  // namespace megatron
