// The optimizer's state in files of the real DeepSpeed, against the tensors that its run-time API
// gave (../shared/golden/deepspeed), and in files with one fault each.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "annex/deepspeed/checkpoint/state.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/deepspeed.h"
#include "tests/support/shared_data.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// "exp_avg.NAME" -> tensor; the parameters themselves are "param.NAME".
std::map<std::string, Tensor> tensors_in(const fs::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, Tensor> tensors;
  for (const SafetensorsFile::Entry& tensor : file.tensors()) {
    tensors[tensor.spec.name] = copy_of(tensor.view);
  }
  return tensors;
}

// Their name of a kind of state.
std::string kind_there(const std::string& kind) {
  return kind == kMainParamSection ? "param" : kind;
}

void expect_state(const fs::path& checkpoint, const fs::path& expected) {
  SCOPED_TRACE(checkpoint.string());
  const std::vector<DeepSpeedRank> ranks = open_deepspeed_ranks(checkpoint);
  ASSERT_EQ(ranks.size(), 1u);
  const DeepSpeedState state =
      ranks[0].optimizer.empty() ? read_plain_state(ranks[0]) : read_zero_state(ranks[0]);
  const std::map<std::string, Tensor> want = tensors_in(expected);
  size_t compared = 0;
  for (const auto& [kind, tensors] : state.kinds) {
    for (const auto& [name, tensor] : tensors) {
      const Tensor& whole = want.at(kind_there(kind) + "." + name);
      const FileElements elements = tensor.read();
      ASSERT_EQ(tensor.numel, whole.numel()) << kind << " " << name;
      expect_identical(copy_of(elements.view).reshape(whole.shape()), whole, kind + " " + name);
      ++compared;
    }
  }
  // In fp32 without ZeRO the weights are the main parameters.
  const size_t weights = state.kinds.contains(kMainParamSection) ? 0 : want.size() / 3;
  EXPECT_EQ(compared + weights, want.size());
  EXPECT_TRUE(state.scalars.contains("optimizer"));
}

// Stages 0 to 3, 16 bits and 32, one rank and two, one group and two, padding or not.
TEST(ZeroStateTest, IsThatOfTheRealTrainings) {
  MG_NEEDS_SHARED("golden/deepspeed/train");
  int count = 0;
  for (const auto& run : fs::directory_iterator(shared_data("golden/deepspeed/train"))) {
    for (const int step : {5, 10}) {
      const fs::path checkpoint = run.path() / "ckpt" / ("global_step" + std::to_string(step));
      const fs::path expected =
          run.path() / ("expected_step" + std::to_string(step) + ".safetensors");
      if (!fs::exists(checkpoint) || !fs::exists(expected)) continue;
      expect_state(checkpoint, expected);
      ++count;
    }
  }
  EXPECT_GE(count, 20);
}

// Our name of a parameter that is named as in the older Megatron-LM.
std::string ours(std::string name) {
  const std::pair<const char*, const char*> rules[] = {
      {"language_model.", ""},
      {"encoder.", "decoder."},
      {"query_key_value", "linear_qkv"},
      {"self_attention.dense", "self_attention.linear_proj"},
      {"post_attention_layernorm", "pre_mlp_layernorm"},
      {"dense_h_to_4h", "linear_fc1"},
      {"dense_4h_to_h", "linear_fc2"}};
  for (const auto& [theirs, us] : rules) {
    const size_t at = name.find(theirs);
    if (at != std::string::npos) name.replace(at, std::string(theirs).size(), us);
  }
  return name;
}

void expect_contents(const CheckpointContents& contents,
                     const std::map<std::string, Tensor>& want) {
  for (const auto& [name, tensor] : want) {
    const std::string kind = name.substr(0, name.find('.'));
    const StoredSection& section = contents.sections.at(kind == "param" ? kMainParamSection : kind);
    const std::string parameter = ours(name.substr(kind.size() + 1));
    ASSERT_TRUE(section.contains(parameter)) << parameter;
    expect_identical(read_whole(section.at(parameter)), tensor, name);
    if (kind != "param") continue;
    const StoredTensor& weight = contents.sections.at(kWeightsSection).at(parameter);
    expect_identical(read_whole(weight), cast(tensor, weight.dtype), name);
  }
  EXPECT_EQ(contents.sections.size(), 4u);
  for (const auto& [kind, section] : contents.sections) EXPECT_EQ(section.size(), want.size() / 3);
}

// Pipelines of BigScience's layers on one and two stages, by 0.8.3 and 0.19.8.
TEST(DeepSpeedCheckpointTest, HasTheStateOfRealPipelines) {
  MG_NEEDS_SHARED("golden/deepspeed/pipe");
  int count = 0;
  for (const auto& run : fs::directory_iterator(shared_data("golden/deepspeed/pipe"))) {
    SCOPED_TRACE(run.path().string());
    const CheckpointContents contents = open_deepspeed_checkpoint(run.path() / "ckpt/global_step5");
    expect_contents(contents, tensors_in(run.path() / "assembled_step5.safetensors"));
    EXPECT_EQ(contents.iteration, 5);
    EXPECT_EQ(contents.consumed_train_samples, 40);
    ++count;
  }
  EXPECT_EQ(count, 4);
}

// Of stages 1 to 3; the latter's files are bare tensors without a count of updates.
TEST(DeepSpeedCheckpointTest, HasTheStateOfRealUniversalCheckpoints) {
  MG_NEEDS_SHARED("golden/deepspeed/train");
  for (const char* name : {"z1_dp2_fp32", "z1_dp2_bf16", "z3_dp2_fp32"}) {
    SCOPED_TRACE(name);
    const fs::path run = shared_data("golden/deepspeed/train") / name;
    const CheckpointContents contents =
        open_deepspeed_checkpoint(run / "ckpt/global_step5_universal");
    expect_contents(contents, tensors_in(run / "expected_step5.safetensors"));
    EXPECT_EQ(contents.scalars.at("optimizer").at("step"), ArgValue(int64_t{5}));
  }
}

// A copy of the repository's checkpoints of the real DeepSpeed.
class RealFilesTest : public testing::Test {
 protected:
  fs::path copied(const char* name) const {
    const fs::path to = directory_.path() / name;
    fs::copy(source_path("tests/golden/deepspeed/checkpoints") / fs::path(name), to,
             fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(to)) {
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
    return to;
  }
  static std::string refusal(const fs::path& checkpoint) {
    return message_of<FormatError>([&] { open_deepspeed_checkpoint(checkpoint); });
  }

  TemporaryDirectory directory_;
};

TEST_F(RealFilesTest, GiveOneStateInEveryStage) {
  const CheckpointContents first = open_deepspeed_checkpoint(copied("zero1"));
  const CheckpointContents third = open_deepspeed_checkpoint(copied("zero3"));
  for (const auto& [kind, section] : first.sections) {
    for (const auto& [name, tensor] : section) {
      // Whatever is added to all keys changes no softmax, so that Adam amplifies rounding there.
      if (name.ends_with("linear_qkv.bias")) continue;
      expect_close(read_whole(third.sections.at(kind).at(name)), read_whole(tensor),
                   {.relative = 1e-3, .absolute = 1e-6}, name);
    }
  }
  EXPECT_EQ(first.iteration, 5);
  EXPECT_EQ(first.consumed_train_samples, 40);
  EXPECT_EQ(first.scalars.at("opt_param_scheduler").at("num_steps"), ArgValue(int64_t{40}));
  EXPECT_EQ(third.scalars.at("optimizer").at("step"), ArgValue(int64_t{5}));
  EXPECT_EQ(first.args.at("num_layers"), ArgValue(int64_t{3}));
}

// Of 0.8.3 in fp16: the layers' files are the rounded main parameters.
TEST_F(RealFilesTest, OfAPipelineHaveTheirScaleAndMainParameters) {
  const CheckpointContents contents = open_deepspeed_checkpoint(copied("pipeline"));
  const StoredSection& mains = contents.sections.at(kMainParamSection);
  ASSERT_EQ(mains.size(), 40u);
  for (const auto& [name, weight] : contents.sections.at(kWeightsSection)) {
    expect_identical(read_whole(weight), cast(read_whole(mains.at(name)), DType::kFloat16), name);
  }
  const ArgMap& scale = contents.scalars.at("grad_scaler");
  EXPECT_EQ(scale.at("scale"), ArgValue(4096.0));
  EXPECT_EQ(scale.at("growth_tracker"), ArgValue(int64_t{5}));
  EXPECT_EQ(scale.at("hysteresis_tracker"), ArgValue(int64_t{2}));
  EXPECT_EQ(contents.args.at("padded_vocab_size"), ArgValue(int64_t{64}));
}

TEST_F(RealFilesTest, AreRefusedWhenRanksAreMissingOrTooMany) {
  const fs::path first = copied("zero1");
  const auto part = [&](const fs::path& folder, int rank) {
    return folder / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt");
  };
  fs::copy(part(first, 1), part(first, 2));
  EXPECT_THAT(refusal(first), AllOf(HasSubstr("zero_pp_rank_2_mp_rank_00_optim_states.pt: is too "
                                              "many: by partition_count of zero_pp_rank_0"),
                                    HasSubstr("there are 2; delete it")));
  fs::remove(part(first, 2));
  fs::copy(part(first, 1), first / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  EXPECT_THAT(refusal(first), HasSubstr("is of the same rank as"));
  fs::remove(first / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
  fs::copy(part(first, 1), first / "zero_pp_rank_0_mp_rank_01_optim_states.pt");
  EXPECT_THAT(refusal(first), HasSubstr("by mp_world_size of mp_rank_00_model_states.pt there are "
                                        "1; delete it"));
  fs::remove(first / "zero_pp_rank_0_mp_rank_01_optim_states.pt");
  fs::remove(part(first, 1));
  EXPECT_THAT(refusal(first), AllOf(HasSubstr("zero_pp_rank_1_mp_rank_00_optim_states.pt: is "
                                              "missing"),
                                    HasSubstr("copy the files of all ranks here")));
  fs::remove(part(first, 0));  // without the optimizer the weights are there
  EXPECT_FALSE(open_deepspeed_checkpoint(first).has_optimizer());
  fs::rename(first / "mp_rank_00_model_states.pt", first / "mp_rank_01_model_states.pt");
  EXPECT_THAT(refusal(first), HasSubstr("mp_rank_00_model_states.pt: is missing"));

  const fs::path third = copied("zero3");
  for (const int rank : {0, 1}) fs::remove(part(third, rank));
  EXPECT_THAT(refusal(third), HasSubstr("is divided among ranks, and no optim_states.pt"));
}

TEST_F(RealFilesTest, DamagedStateIsNotOpenedForTheWeights) {
  const fs::path first = copied("zero1");
  const CheckpointContents whole = open_deepspeed_checkpoint(first);
  for (const int rank : {0, 1}) {
    std::ofstream(first / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"))
        << "damaged";
  }
  EXPECT_THAT(message_of<Error>([&] { open_deepspeed_checkpoint(first); }),
              HasSubstr("optim_states.pt"));
  const CheckpointContents weights = open_deepspeed_checkpoint(first, {}, Parts::kWeights);
  EXPECT_FALSE(weights.has_optimizer());
  for (const auto& [name, tensor] : weights.sections.at(kWeightsSection)) {
    expect_identical(read_whole(tensor), read_whole(whole.sections.at(kWeightsSection).at(name)));
  }
  // In stage 3 the weights are in these files.
  EXPECT_EQ(open_deepspeed_checkpoint(copied("zero3"), {}, Parts::kWeights).sections.size(), 1u);
}

// Files of another save, with other numbers of elements, and bytes that changed.
TEST_F(RealFilesTest, AreRefusedWhenTheyDoNotFitEachOther) {
  const char* const part = "zero_pp_rank_1_mp_rank_00_optim_states.pt";
  const fs::path first = copied("zero1");
  const fs::path third = copied("zero3");
  fs::copy(third / part, first / part, fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(first), HasSubstr("has no single_partition_of_fp32_groups"));
  const char* const other = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
  fs::remove_all(first);
  const fs::path again = copied("zero1");
  fs::copy(again / other, again / part, fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(again), HasSubstr("are all files of one save?"));

  std::string bytes = [&] {
    std::ifstream file(third / part, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(third / part, std::ios::binary) << bytes;
  const std::string message = message_of<FormatError>([&] {
    const CheckpointContents contents = open_deepspeed_checkpoint(third);
    for (const auto& [kind, section] : contents.sections) {
      for (const auto& [name, tensor] : section) read_whole(tensor);
    }
  });
  EXPECT_THAT(message, AllOf(HasSubstr(part), HasSubstr("checksum")));
}

}  // namespace
}  // namespace megatron
