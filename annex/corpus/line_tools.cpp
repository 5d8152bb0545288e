#include "annex/corpus/line_tools.h"

#include <fmt/format.h>

#include "annex/corpus/json_object.h"

namespace megatron::corpus {
LineCounts merge_json_files(const std::filesystem::path& folder,
                            const std::filesystem::path& output, const RunOptions& options) {
  return rewrite_lines(files_with_extension(folder, ".json", output), output, options, [] {
    return [object = JsonObject()](const Line& line) mutable {
      if (std::optional<std::string> problem = object.parse(line.text)) {
        return NewLine::bad(*problem);
      }
      return NewLine::write(std::string(line.text));
    };
  });
}

LineCounts add_ids(const std::filesystem::path& input, const std::filesystem::path& output,
                   const std::string& prefix, const RunOptions& options) {
  struct Parsed {
    JsonObject object;
    std::optional<std::string> problem;
  };
  expect_other_files({&input, 1}, {&output, 1});
  FileWriter writer(output);
  LineCounts counts;
  const auto make_parser = [] {
    return [](const Line& line) {
      Parsed parsed;
      parsed.problem = parsed.object.parse(line.text);
      return parsed;
    };
  };
  counts.lines =
      each_line<Parsed>({&input, 1}, options, make_parser, [&](const Line& line, Parsed& parsed) {
        if (parsed.problem) {
          report_bad(options, line, *parsed.problem);
          ++counts.bad;
          return;
        }
        parsed.object.set_text("adlr_id", fmt::format("{}-{:010}", prefix, ++counts.written));
        writer.write(parsed.object.line());
        writer.write("\n");
      });
  writer.commit();
  return counts;
}

}  // namespace megatron::corpus
