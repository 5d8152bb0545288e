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

TEST_F(HfFolderTest, EveryFlippedBitIsRefused) {
  read();
  expect_checksums(folder());
  std::mt19937_64 random(3);
  for (const std::string name : {"model.safetensors", "config.json"}) {
    const std::string text = read_text(folder() / name);
    for (int i = 0; i < 20; ++i) {
      std::string flipped = text;
      // Behind the header, whose reader has its own words for damage.
      const size_t first = name == "config.json" ? 0 : text.size() / 2;
      const size_t at = first + random() % (text.size() - first);
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << random() % 8));
      write_text_atomically(folder() / name, flipped);
      EXPECT_THAT(message_of<FormatError>([&] { read(); }),
                  AllOf(HasSubstr(name + ": has "), HasSubstr("copy it again")))
          << at;
    }
    write_text_atomically(folder() / name, text);
  }
  read();
}

TEST_F(HfFolderTest, AFolderOfOthersNeedsNoChecksums) {
  std::filesystem::remove(folder() / kChecksumsFile);
  read();
}

}  // namespace
}  // namespace megatron
