#include "annex/deepspeed/checkpoint/hf_module.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "megatron/checkpoint/directory.h"
#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/formats/torch_writer.h"
#include "megatron/interchange/deepspeed.h"
#include "megatron/interchange/hf/names.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A checkpoint of transformers' Trainer with the golden model's weights, whose first moments are
// twice as large. Parameter: the golden model.
class HfModuleTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    fs::create_directories(step_);
    fs::copy(golden() / "config.json", directory_.path() / "config.json");
    directory_.write("latest", "global_step7");
    const SafetensorsFile file(golden() / "model.safetensors");
    for (const SafetensorsFile::Entry& tensor : file.tensors()) {
      names_.push_back(tensor.spec.name);
      tensors_.push_back(copy_of(tensor.view));
    }
  }
  static fs::path golden() { return source_path("tests/golden/hf") / fs::path(GetParam()); }

  Tensor doubled(const Tensor& tensor) const {
    Tensor twice = copy_of(tensor.view());
    scale_inplace(twice, 2.0f);
    return twice;
  }
  // The file of the model; `more` writes further keys.
  template <class More>
  void write_model(const char* name, bool is_divided, const More& more,
                   const std::vector<Tensor>& further = {}) const {
    TorchWriter writer(step_ / name);
    PickleWriter& pickle = writer.pickle();
    pickle.begin_dict();
    pickle.text("global_steps"), pickle.integer(7);
    pickle.text("global_samples"), pickle.integer(56);
    pickle.text("module"), pickle.begin_ordered_dict();
    for (size_t i = 0; i < names_.size(); ++i) {
      pickle.text(names_[i]);
      writer.tensor(tensors_[i].dtype(), is_divided ? Shape({0}) : tensors_[i].shape());
    }
    pickle.end_ordered_dict();
    more(writer);
    pickle.end_dict();
    for (const Tensor& tensor : tensors_) {
      writer.write(is_divided ? Tensor({0}, tensor.dtype(), {}).view() : tensor.view());
    }
    for (const Tensor& tensor : further) writer.write(tensor.view());
    writer.commit();
  }
  void write_without_zero() const {
    std::vector<Tensor> moments;
    for (const Tensor& tensor : tensors_) moments.push_back(doubled(tensor));
    const auto optimizer = [&](TorchWriter& writer) {
      PickleWriter& pickle = writer.pickle();
      pickle.text("optimizer"), pickle.begin_dict();
      pickle.text("state"), pickle.begin_dict();
      for (size_t i = 0; i < moments.size(); ++i) {
        pickle.integer(static_cast<int64_t>(i)), pickle.begin_dict();
        pickle.text("step"), pickle.integer(7);
        pickle.text("exp_avg"), writer.tensor(moments[i].dtype(), moments[i].shape());
        pickle.end_dict();
      }
      pickle.end_dict(), pickle.text("param_groups"), pickle.begin_list(), pickle.begin_dict();
      pickle.text("params"), pickle.begin_list();
      for (size_t i = 0; i < moments.size(); ++i) pickle.integer(static_cast<int64_t>(i));
      pickle.end_list(), pickle.end_dict(), pickle.end_list(), pickle.end_dict();
    };
    write_model("mp_rank_00_model_states.pt", false, optimizer, moments);
  }
  // Stage 3 on one rank.
  void write_zero3() const {
    std::vector<float> flat;
    for (const Tensor& tensor : tensors_) {
      const auto values = tensor.span<float>();
      flat.insert(flat.end(), values.begin(), values.end());
    }
    const auto shapes = [&](TorchWriter& writer) {
      PickleWriter& pickle = writer.pickle();
      pickle.text("param_shapes"), pickle.begin_list(), pickle.begin_ordered_dict();
      for (size_t i = 0; i < names_.size(); ++i) {
        pickle.text(names_[i]), pickle.begin_tuple();
        for (int k = 0; k < tensors_[i].shape().rank(); ++k) pickle.integer(tensors_[i].size(k));
        pickle.end_tuple();
      }
      pickle.end_ordered_dict(), pickle.end_list();
    };
    write_model("zero_pp_rank_0_mp_rank_00_model_states.pt", true, shapes);
    Tensor mains({static_cast<int64_t>(flat.size())}, DType::kFloat32, {});
    std::ranges::copy(flat, mains.span<float>().begin());
    TorchWriter writer(step_ / "zero_pp_rank_0_mp_rank_00_optim_states.pt");
    PickleWriter& pickle = writer.pickle();
    pickle.begin_dict(), pickle.text("optimizer_state_dict"), pickle.begin_dict();
    pickle.text("partition_count"), pickle.integer(1);
    pickle.text("fp32_flat_groups"), pickle.begin_list();
    writer.tensor(mains.dtype(), mains.shape()), pickle.end_list();
    pickle.text("optimizer_state_dict"), pickle.begin_dict();
    pickle.text("state"), pickle.begin_dict(), pickle.integer(0), pickle.begin_dict();
    pickle.text("step"), pickle.integer(7);
    pickle.text("exp_avg"), writer.tensor(mains.dtype(), mains.shape());
    pickle.end_dict(), pickle.end_dict(), pickle.end_dict(), pickle.end_dict(), pickle.end_dict();
    writer.write(mains.view()), writer.write(doubled(mains).view());
    writer.commit();
  }
  // The result of ds_to_universal.
  void write_universal() const {
    write_model("mp_rank_00_model_states.pt", false, [](TorchWriter&) {});
    for (size_t i = 0; i < names_.size(); ++i) {
      const fs::path folder = step_ / "zero" / names_[i];
      fs::create_directories(folder);
      write_param(folder / "fp32.pt", tensors_[i]);
      write_param(folder / "exp_avg.pt", doubled(tensors_[i]));
      write_param(folder / "exp_avg_sq.pt", tensors_[i]);
      Tensor step({1}, DType::kFloat32, {});
      step.span<float>()[0] = 7;
      write_param(folder / "step.pt", step);
    }
  }
  static void write_param(const fs::path& path, const Tensor& tensor) {
    TorchWriter writer(path);
    writer.pickle().begin_dict();
    writer.pickle().text("param"), writer.tensor(tensor.dtype(), tensor.shape());
    writer.pickle().end_dict();
    writer.write(tensor.view());
    writer.commit();
  }
  void expect_model() const {
    ASSERT_EQ(find_checkpoint(directory_.path(), 0), step_);
    const CheckpointContents contents = open_deepspeed_checkpoint(step_);
    const CheckpointContents want = open_hf_checkpoint(golden(), read_hf_config(golden()));
    const StoredSection& weights = contents.sections.at(kWeightsSection);
    ASSERT_EQ(weights.size(), want.sections.at(kWeightsSection).size());
    for (const auto& [name, stored] : want.sections.at(kWeightsSection)) {
      const Tensor weight = read_whole(stored);
      expect_identical(read_whole(weights.at(name)), weight, name);
      expect_identical(read_whole(contents.sections.at(kMainParamSection).at(name)), weight, name);
      expect_identical(read_whole(contents.sections.at("exp_avg").at(name)), doubled(weight), name);
    }
    EXPECT_EQ(contents.iteration, 7);
    EXPECT_EQ(contents.consumed_train_samples, 56);
    EXPECT_EQ(contents.scalars.at("optimizer").at("step"), ArgValue(int64_t{7}));
    EXPECT_EQ(contents.args.at("num_layers"),
              ArgValue(read_hf_config(golden()).transformer.num_layers));
  }

  TemporaryDirectory directory_;
  fs::path step_ = directory_.path() / "global_step7";
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
};

TEST_P(HfModuleTest, HasWeightsAndMomentsWithoutZero) {
  write_without_zero();
  expect_model();
}

TEST_P(HfModuleTest, HasWeightsAndMomentsOfStage3) {
  write_zero3();
  expect_model();
}

TEST_P(HfModuleTest, HasWeightsAndMomentsOfAUniversalCheckpoint) {
  write_universal();
  expect_model();
  for (const std::string& name : names_)
    directory_.write("global_step7/zero/" + name + "/exp_avg.pt", "");
  const auto weights = open_deepspeed_checkpoint(step_, {}, Parts::kWeights).sections;
  EXPECT_EQ(weights.size(), 1u);
}

TEST_P(HfModuleTest, AsksForTheConfig) {
  write_without_zero();
  fs::remove(directory_.path() / "config.json");
  EXPECT_THAT(message_of<FormatError>([&] { open_deepspeed_checkpoint(step_); }),
              AllOf(HasSubstr(step_.string() + ": parameters such as "),
                    HasSubstr("copy its config.json there")));
}

INSTANTIATE_TEST_SUITE_P(Models, HfModuleTest, testing::Values("gpt2", "llama-gqa"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace megatron
