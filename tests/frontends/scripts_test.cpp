#include "megatron/frontends/scripts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::frontends {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Scripts, StandForCommands) {
  EXPECT_EQ(command_of_script("pretrain_gpt.py"), "pretrain-gpt");
  EXPECT_EQ(command_of_script("pretrain_prefix_lm.py"), "pretrain-prefix-lm");
  EXPECT_EQ(command_of_script("/opt/megatron/tools/preprocess_data.py"), "preprocess-data");
  EXPECT_EQ(command_of_script("tools/checkpoint/util.py"), "convert-checkpoint");
  EXPECT_EQ(command_of_script("pretrain-gpt"), "pretrain-gpt");
  EXPECT_EQ(command_of_script("pretrain_gpt"), "pretrain_gpt");
}

TEST(Scripts, MayStandForTheToolOfACommand) {
  EXPECT_THAT(words_of_script("tools/openwebtext/find_duplicates.py"),
              ElementsAre("corpus", "find-duplicates"));
  EXPECT_EQ(command_of_script("group_duplicate_url.py"), "corpus");
  EXPECT_THAT(words_of_script("pretrain_gpt.py"), ElementsAre("pretrain-gpt"));
  EXPECT_THAT(words_of_script("corpus"), ElementsAre("corpus"));
  EXPECT_THAT(words_of_script("ckpt/zero_to_fp32.py"),
              ElementsAre("convert-checkpoint", "zero-to-fp32"));
  EXPECT_THAT(words_of_script("deepspeed/checkpoint/ds_to_universal.py"),
              ElementsAre("convert-checkpoint", "--saver=native"));
  EXPECT_THAT(words_of_script("deepspeed_to_transformers.py"),
              ElementsAre("convert-checkpoint", "--saver=hf"));
}

TEST(Scripts, WithoutACommandAreRefused) {
  const auto message = [](const char* script) {
    return message_of<ConfigError>([&] { command_of_script(script); });
  };
  EXPECT_THAT(message("pretrain_ict.py"), HasSubstr("pretrain_ict.py has no command here yet"));
  EXPECT_THAT(message("train.py"), HasSubstr("train.py is a Python script that no command"));
  EXPECT_THAT(message("my_pretrain_gpt.py"), HasSubstr("that no command stands for"));
}

TEST(Scripts, MayImportThePackage) {
  const TemporaryDirectory directory;
  const auto imports = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory.path() / name;
    std::ofstream(path) << text;
    return imports_package(path.string());
  };
  EXPECT_TRUE(
      imports("pretrain_gpt.py", "import torch\n  from megatron_cpp.accelerate import x\n"));
  EXPECT_TRUE(imports("a.py", "import megatron_cpp as mg"));
  EXPECT_FALSE(imports("b.py", "import megatron\n# import megatron_cpp\n\n"));
  EXPECT_FALSE(imports("c.txt", "import megatron_cpp"));
  EXPECT_FALSE(imports_package("pretrain_gpt.py"));
}

TEST(Scripts, PythonIsLeftOut) {
  const auto words = [](const std::vector<std::string>& line) { return words_of_python(line); };
  EXPECT_THAT(words({"-u", "-m", "torch.distributed.launch", "--nproc_per_node", "2"}),
              ElementsAre("launch", "--nproc_per_node", "2"));
  EXPECT_THAT(words({"-m", "torch.distributed.run"}), ElementsAre("launch"));
  EXPECT_THAT(words({"-m", "accelerate.commands.launch", "x.py"}),
              ElementsAre("accelerate", "launch", "x.py"));
  EXPECT_THAT(words({"-u", "pretrain_gpt.py", "-m"}), ElementsAre("pretrain_gpt.py", "-m"));
  EXPECT_THAT(words({"launch", "-m"}), ElementsAre("launch", "-m"));
  EXPECT_THAT(words({}), ElementsAre());
  EXPECT_THAT(message_of<ConfigError>([&] {
                words({"-m", "torch.utils.bottleneck"});
              }),
              HasSubstr("-m torch.utils.bottleneck is a Python module that no command stands for"));
}

TEST(Scripts, LinksStandForWords) {
  EXPECT_THAT(words_of_link("/usr/bin/accelerate"), ElementsAre("accelerate"));
  EXPECT_THAT(words_of_link("accelerate-launch"), ElementsAre("accelerate", "launch"));
  EXPECT_THAT(words_of_link("./deepspeed"), ElementsAre("deepspeed"));
  EXPECT_THAT(words_of_link("torchrun"), ElementsAre("launch"));
  EXPECT_THAT(words_of_link("/usr/bin/megatron"), ElementsAre());
}

}  // namespace
}  // namespace megatron::frontends
