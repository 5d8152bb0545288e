#pragma once

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/program/program_test.h"

namespace megatron::program {

using Ids = std::vector<int32_t>;

// One {"ids": [...]} per line.
inline std::string json_lines(const std::vector<Ids>& rows) {
  std::string text;
  for (const Ids& row : rows) text += nlohmann::json({{"ids", row}}).dump() + "\n";
  return text;
}

inline std::vector<nlohmann::json> parsed_lines(const std::string& text) {
  std::vector<nlohmann::json> objects;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    objects.push_back(nlohmann::json::parse(line));
  }
  return objects;
}

class InferenceTest : public ProgramTest {
 protected:
  // A checkpoint of the golden run, whose model has learned something.
  std::filesystem::path trained() const {
    train(golden_flags()
              .with("--eval-iters", "0")
              .with("--save", path("save").string())
              .with("--save-interval", "20"));
    return path("save");
  }
  static std::vector<nlohmann::json> generate(const std::filesystem::path& model,
                                              const std::vector<Ids>& prompts, const Flags& flags) {
    const Outcome outcome = run("generate",
                                flags.with("--load", model.string())
                                    .with("--device", "cpu")
                                    .with("--prompt-file", "-")
                                    .with("--json")
                                    .words(),
                                {.input = json_lines(prompts)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return parsed_lines(outcome.out);
  }
  static std::vector<nlohmann::json> score(const std::filesystem::path& model,
                                           const std::vector<Ids>& rows) {
    const Outcome outcome =
        run("score", {"--load", model.string(), "--device", "cpu"}, {.input = json_lines(rows)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return parsed_lines(outcome.out);
  }
};

}  // namespace megatron::program
