#include <fstream>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class BadDataTest : public ProgramTest {
 protected:
  // A copy of the golden dataset that a test may spoil; its prefix.
  fs::path copied_dataset() const {
    for (const char* ending : {".bin", ".idx"}) {
      fs::copy_file(golden("megatron/data") / (std::string("corpus_text_document") + ending),
                    path("data") += ending, fs::copy_options::overwrite_existing);
    }
    return path("data");
  }
  static void write(const fs::path& file, const std::string& content) {
    std::ofstream(file, std::ios::binary) << content;
  }
  std::vector<std::string> refused(const fs::path& prefix) const {
    return refused(golden_flags().with("--data-path", prefix.string()));
  }
  static std::vector<std::string> refused(const Flags& flags) {
    const Outcome outcome = run("pretrain-gpt", flags.words());
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_LT(outcome.seconds, 5);
    return errors_of(outcome);
  }
};

TEST_F(BadDataTest, MissingFiles) {
  EXPECT_THAT(refused(path("none")),
              ElementsAre(AllOf(HasSubstr(path("none.idx").string()), HasSubstr("not found"))));
  const fs::path prefix = copied_dataset();
  fs::remove(path("data.bin"));
  EXPECT_THAT(refused(prefix), ElementsAre(HasSubstr(path("data.bin").string())));
}

TEST_F(BadDataTest, PrefixWithExtension) {
  const fs::path prefix = copied_dataset();
  EXPECT_THAT(refused(path("data.bin")),
              ElementsAre(HasSubstr("give the prefix " + prefix.string() + " without .bin")));
}

TEST_F(BadDataTest, TruncatedTokens) {
  const fs::path prefix = copied_dataset();
  for (const uintmax_t size :
       {fs::file_size(path("data.bin")) - 1, uintmax_t{1000}, uintmax_t{0}}) {
    fs::resize_file(path("data.bin"), size);
    EXPECT_THAT(refused(prefix),
                ElementsAre(AllOf(HasSubstr(path("data.bin").string()),
                                  HasSubstr("has " + std::to_string(size) + " bytes"),
                                  HasSubstr("truncated"))));
  }
}

TEST_F(BadDataTest, BadIndex) {
  const fs::path prefix = copied_dataset();
  const std::string index = read_text(path("data.idx"));
  write(path("data.idx"), "{\"text\": \"this is no index at all, but a line of text\"}");
  EXPECT_THAT(refused(prefix),
              ElementsAre(AllOf(HasSubstr(path("data.idx").string()), HasSubstr("MMIDIDX"))));
  for (const size_t size : {index.size() - 1, size_t{20}, size_t{0}}) {
    write(path("data.idx"), index.substr(0, size));
    EXPECT_THAT(refused(prefix), ElementsAre(HasSubstr("truncated")));
  }
}

TEST_F(BadDataTest, TokensBeyondTheTokenizer) {
  const Flags flags = golden_flags()
                          .with("--tokenizer-type", "NullTokenizer")
                          .without("--vocab-file")
                          .without("--merge-file")
                          .with("--vocab-size", "100");
  EXPECT_THAT(refused(flags),
              ElementsAre(AllOf(HasSubstr("corpus_text_document"), HasSubstr("101 ids"),
                                HasSubstr("give the tokenizer"))));
}

TEST_F(BadDataTest, UnreadableTokenizer) {
  EXPECT_THAT(refused(golden_flags().with("--vocab-file", path("none.json").string())),
              ElementsAre(HasSubstr(path("none.json").string())));
  write(path("broken.json"), "{\"a\": 1,");
  EXPECT_THAT(refused(golden_flags().with("--vocab-file", path("broken.json").string())),
              ElementsAre(HasSubstr(path("broken.json").string())));
}

TEST_F(BadDataTest, UnreadableJsonl) {
  const Flags flags = Flags()
                          .with("--input", path("in.jsonl").string())
                          .with("--output-prefix", path("out").string())
                          .with("--tokenizer-type", "NullTokenizer")
                          .with("--vocab-size", "100")
                          .with("--workers", "1");
  EXPECT_EQ(run("preprocess-data", flags.words()).exit_code, 2);
  fs::create_directory(path("in.jsonl"));
  const Outcome outcome = run("preprocess-data", flags.words());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome), ElementsAre(HasSubstr(path("in.jsonl").string())));
  EXPECT_FALSE(fs::exists(path("out_text_document.idx")));
  EXPECT_FALSE(fs::exists(path("out_text_document.bin")));
}

// Weights that no longer mean anything end the run; the message says where to look.
TEST_F(BadDataTest, LossThatIsNotANumber) {
  const std::vector<std::string> errors =
      refused(golden_flags().with("--lr", "1e30").with("--lr-warmup-iters", "0"));
  EXPECT_THAT(errors, ElementsAre(AllOf(HasSubstr("iteration 2"), HasSubstr("not a number"),
                                        HasSubstr("--lr"))));
}

}  // namespace
}  // namespace megatron::program
