#include "megatron/interchange/hf/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "megatron/core/checksums.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/names.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A Llama that this program has written.
class HfFolderTest : public testing::Test {
 protected:
  HfFolderTest() {
    const std::filesystem::path golden = source_path("tests/golden/hf/llama");
    const HfModel model = read_hf_config(golden);
    write_hf_folder(folder(), open_hf_checkpoint(golden, model), model.transformer,
                    {.vocab_size = model.vocab_size});
  }

  const std::filesystem::path& folder() const { return directory_.path(); }
  // Reads everything.
  void read() const {
    const HfModel model = read_hf_config(folder());
    const CheckpointContents contents = open_hf_checkpoint(folder(), model);
    for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) read_whole(tensor);
  }

  const TemporaryDirectory directory_;
};

TEST_F(HfFolderTest, EveryFlippedBitOfAWeightIsRefused) {
  read();
  expect_checksums(folder());
  const std::string text = read_text(folder() / "model.safetensors");
  std::mt19937_64 random(3);
  for (int i = 0; i < 80; ++i) {
    std::string flipped = text;
    // Behind the header, whose reader has its own words for damage.
    const size_t at = text.size() / 2 + random() % (text.size() / 2);
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
    write_text_atomically(folder() / "model.safetensors", flipped);
    EXPECT_THAT(message_of<FormatError>([&] { read(); }),
                AllOf(HasSubstr("model.safetensors: has "), HasSubstr("copy it again")))
        << at;
  }
  write_text_atomically(folder() / "model.safetensors", text);
  read();
}

TEST_F(HfFolderTest, AnEditedConfigurationGivesAWarning) {
  const std::string text = read_text(folder() / "config.json");
  write_text_atomically(folder() / "config.json", text + "\n");
  CapturedStderr captured_err;
  read();
  EXPECT_THAT(captured_err.text(),
              AllOf(HasSubstr("warning: "), HasSubstr("config.json: has "),
                    HasSubstr("If it was changed on purpose, delete the list")));
}

TEST_F(HfFolderTest, AFolderOfOthersNeedsNoChecksums) {
  std::filesystem::remove(folder() / kChecksumsFile);
  read();
}

}  // namespace
}  // namespace megatron
