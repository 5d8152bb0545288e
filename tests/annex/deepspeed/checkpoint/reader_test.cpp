#include "megatron/interchange/deepspeed.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "megatron/checkpoint/directory.h"
#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
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

// The same with the state of stage 1 on two data-parallel ranks for each tensor-parallel one, in
// the forms of older and newer versions: parameters in a flat buffer that is cut where it falls,
// behind them padding.
class ZeroOnTensorRanksTest : public DeepSpeedReaderTest {
 protected:
  static constexpr int64_t kPart = 49;

  Named parameters(int rank) const {
    const float mean = rank == 0 ? 1.0f : 3.0f;
    const Tensor same = full({6}, mean, DType::kFloat32, {});
    return {{"tied_modules.embed.word_embeddings.weight", words_.slice(4 * rank, 4)},
            {"tied_modules.embed.word_embeddings.norm.weight", same},
            {"3.self_attention.query_key_value.weight", qkv_.slice(9 * rank, 9)},
            {"3.self_attention.dense.bias", same},
            {"5.weight", same}};
  }
  std::string optimizer_file(int data, int rank) const {
    return "zero_pp_rank_" + std::to_string(data) + "_mp_rank_0" + std::to_string(rank) +
           "_optim_states.pt";
  }
  void write_models() const {
    for (int rank = 0; rank < 2; ++rank) {
      TorchWriter writer(directory_.path() /
                         ("mp_rank_0" + std::to_string(rank) + "_model_states.pt"));
      PickleWriter& pickle = writer.pickle();
      pickle.begin_dict();
      pickle.text("mp_world_size"), pickle.integer(2);
      pickle.text("global_steps"), pickle.integer(9);
      pickle.text("global_samples"), pickle.integer(90);
      pickle.text("skipped_steps"), pickle.integer(2);
      pickle.text("ds_config"), pickle.begin_dict();
      pickle.text("train_batch_size"), pickle.integer(10);
      pickle.end_dict();
      pickle.text("param_shapes"), pickle.begin_list(), pickle.begin_ordered_dict();
      for (const auto& [name, tensor] : parameters(rank)) {
        pickle.text(name), pickle.begin_tuple();
        for (int axis = 0; axis < tensor.shape().rank(); ++axis) pickle.integer(tensor.size(axis));
        pickle.end_tuple();
      }
      pickle.end_ordered_dict(), pickle.end_list();
      pickle.end_dict();
      writer.commit();
    }
  }
  // `shift` moves the first slice.
  void write_optimizer(int data, int rank, bool is_new, int64_t shift = 0) const {
    std::vector<float> flat;
    for (const auto& [name, tensor] : parameters(rank)) {
      const auto values = tensor.span<float>();
      flat.insert(flat.end(), values.begin(), values.end());
    }
    flat.resize(static_cast<size_t>(2 * kPart), -1.0f);
    Tensor part({kPart}, DType::kFloat32, {});
    std::copy_n(flat.begin() + data * kPart, kPart, part.span<float>().begin());

    TorchWriter writer(directory_.path() / optimizer_file(data, rank));
    PickleWriter& pickle = writer.pickle();
    pickle.begin_dict(), pickle.text("optimizer_state_dict"), pickle.begin_dict();
    pickle.text("partition_count"), pickle.begin_list(), pickle.integer(2), pickle.end_list();
    pickle.text("group_paddings"), pickle.begin_list(), pickle.integer(data == 0 ? 0 : 2);
    pickle.end_list();
    pickle.text("single_partition_of_fp32_groups"), pickle.begin_list();
    writer.tensor(part.dtype(), part.shape()), pickle.end_list();
    pickle.text("base_optimizer_state");
    if (is_new) {
      pickle.begin_dict(), pickle.text("state"), pickle.begin_dict(), pickle.integer(0);
    } else {
      pickle.begin_list();
    }
    pickle.begin_dict();
    pickle.text("exp_avg"), writer.tensor(part.dtype(), part.shape());
    pickle.text("exp_avg_sq"), writer.tensor(part.dtype(), part.shape());
    pickle.end_dict();
    if (is_new) {
      pickle.end_dict(), pickle.text("param_groups"), pickle.begin_list(), pickle.begin_dict();
      pickle.text("step"), pickle.integer(7);
      pickle.end_dict(), pickle.end_list(), pickle.end_dict();
      write_slices(pickle, data, rank, shift);
    } else {
      pickle.end_list();
    }
    pickle.end_dict(), pickle.end_dict();
    for (const float factor : {1.0f, 2.0f, 3.0f}) {
      Tensor state = copy_of(part.view());
      scale_inplace(state, factor);
      writer.write(state.view());
    }
    writer.commit();
  }
  void write_slices(PickleWriter& pickle, int data, int rank, int64_t shift) const {
    pickle.text("param_slice_mappings"), pickle.begin_list(), pickle.begin_ordered_dict();
    int64_t at = -data * kPart;
    for (const auto& [name, tensor] : parameters(rank)) {
      const int64_t begin = std::max<int64_t>(at, 0);
      const int64_t end = std::min(at + tensor.numel(), kPart);
      at += tensor.numel();
      if (begin >= end) continue;
      pickle.text(name), pickle.begin_namespace();
      pickle.text("start"), pickle.integer(begin + shift);
      pickle.text("numel"), pickle.integer(end - begin);
      pickle.end_namespace();
    }
    pickle.end_ordered_dict(), pickle.end_list();
  }
  void write_all(bool is_new) const {
    write_run();
    write_models();
    for (int data = 0; data < 2; ++data) {
      for (int rank = 0; rank < 2; ++rank) write_optimizer(data, rank, is_new);
    }
  }
};

TEST_F(ZeroOnTensorRanksTest, JoinsTheStateOfAllRanks) {
  for (const bool is_new : {false, true}) {
    write_all(is_new);
    const CheckpointContents run = open_deepspeed_checkpoint(directory_.path());
    EXPECT_EQ(run.iteration, 9);
    EXPECT_EQ(run.consumed_train_samples, 90);
    EXPECT_EQ(run.scalars.at("opt_param_scheduler").at("num_steps"), ArgValue(int64_t{70}));
    EXPECT_EQ(run.scalars.contains("optimizer"), is_new);
    if (is_new) {
      EXPECT_EQ(run.scalars.at("optimizer").at("step"), ArgValue(int64_t{7}));
    }
    float factor = 1;
    for (const char* kind : {kMainParamSection, "exp_avg", "exp_avg_sq"}) {
      const StoredSection& section = run.sections.at(kind);
      ASSERT_EQ(section.size(), 5u) << kind;
      const auto scaled = [&](const Tensor& tensor) {
        Tensor result = copy_of(tensor.view());
        scale_inplace(result, factor);
        return result;
      };
      expect_identical(read_whole(section.at("embedding.word_embeddings.weight")), scaled(words_));
      expect_identical(read_whole(section.at("decoder.layers.0.self_attention.linear_qkv.weight")),
                       scaled(qkv_));
      const Tensor mean = full({6}, 2.0f * factor, DType::kFloat32, {});
      for (const char* name : {"embedding.norm.weight", "decoder.final_layernorm.weight",
                               "decoder.layers.0.self_attention.linear_proj.bias"}) {
        expect_identical(read_whole(section.at(name)), mean, name);
      }
      ++factor;
    }
  }
}

TEST_F(ZeroOnTensorRanksTest, NoticesSlicesAndRanksThatDoNotFit) {
  const auto refusal = [&] {
    return message_of<FormatError>([&] { open_deepspeed_checkpoint(directory_.path()); });
  };
  write_all(true);
  write_optimizer(1, 1, true, 30);
  EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("zero_pp_rank_1_mp_rank_01_optim_states.pt"),
                                        HasSubstr("but the buffer has 49; is the file damaged?")));
  write_optimizer(1, 1, false);
  EXPECT_THAT(refusal(), HasSubstr("has no param_slice_mappings for its groups"));
  write_optimizer(1, 1, true);
  for (int data = 0; data < 2; ++data) {
    std::filesystem::remove(directory_.path() / optimizer_file(data, 1));
  }
  EXPECT_THAT(refusal(), testing::AllOf(HasSubstr("zero_pp_rank_0_mp_rank_01_optim_states.pt: is "
                                                  "missing: by mp_world_size"),
                                        HasSubstr("there are 2")));
  write_all(false);
  std::filesystem::remove(directory_.path() / "mp_rank_01_model_states.pt");
  EXPECT_THAT(refusal(), HasSubstr("mp_rank_01_model_states.pt: is missing"));
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
