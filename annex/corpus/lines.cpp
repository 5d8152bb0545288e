#include "annex/corpus/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "megatron/core/error.h"

namespace megatron::corpus {

std::string about(const Line& line, std::string_view reason) {
  return fmt::format("{}:{}: {}", line.file->string(), line.number, reason);
}

void report_bad(const RunOptions& options, const Line& line, std::string_view problem) {
  if (options.on_bad_line) options.on_bad_line(about(line, problem));
}

std::vector<std::filesystem::path> files_with_extension(const std::filesystem::path& folder,
                                                        std::string_view extension,
                                                        const std::filesystem::path& output) {
  std::error_code reason;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, reason)) {
    std::error_code missing;  // the output need not exist
    const bool is_output = std::filesystem::equivalent(entry.path(), output, missing);
    if (entry.path().extension() != extension || is_output || entry.is_directory()) continue;
    files.push_back(entry.path());
  }
  if (reason) {
    throw IoError(fmt::format("{}: cannot list the folder: {}; check the path", folder.string(),
                              reason.message()));
  }
  if (files.empty()) {
    throw ConfigError(
        fmt::format("{}: the folder has no file *{}; check the path", folder.string(), extension));
  }
  std::ranges::sort(files);
  return files;
}

void expect_other_files(Paths inputs, Paths outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) throw ConfigError("the output file has no name; give its path");
    for (size_t k = i + 1; k < outputs.size(); ++k) {
      if (outputs[i] != outputs[k]) continue;
      throw ConfigError(
          fmt::format("{}: two outputs have this path; give each its own", outputs[i].string()));
    }
    for (const std::filesystem::path& input : inputs) {
      std::error_code missing;  // an output need not exist
      if (!std::filesystem::equivalent(input, outputs[i], missing)) continue;
      throw ConfigError(
          fmt::format("{}: the output is also an input; give another path", outputs[i].string()));
    }
  }
}

LineCounts rewrite_lines(Paths inputs, const std::filesystem::path& output,
                         const RunOptions& options, const std::function<LineWork()>& make_work) {
  return rewrite_batches(inputs, output, options,
                         [&]() -> BatchWork { return line_by_line<NewLine>(make_work()); });
}

LineCounts rewrite_batches(Paths inputs, const std::filesystem::path& output,
                           const RunOptions& options, const std::function<BatchWork()>& make_work) {
  expect_other_files(inputs, {&output, 1});
  FileWriter writer(output);
  LineCounts counts;
  const auto take = [&](const Line& line, NewLine& result) {
    if (result.kind == NewLine::Kind::kBad) {
      report_bad(options, line, result.text);
      ++counts.bad;
    } else if (result.kind == NewLine::Kind::kWrite) {
      writer.write(result.text);
      writer.write("\n");
      ++counts.written;
    }
  };
  counts.lines = each_batch<NewLine>(inputs, options, make_work, take);
  writer.commit();
  return counts;
}

}  // namespace megatron::corpus
