#include "annex/corpus/clean.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "annex/corpus/english.h"
#include "annex/corpus/json_object.h"
#include "annex/corpus/text_repair.h"
#include "megatron/core/error.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::corpus {
namespace {

constexpr size_t kShortTokens = 128;
constexpr size_t kShortCharacters = 8 * kShortTokens;

constexpr std::array<std::string_view, 5> kTaskNames = {"remove_512", "remove_256_javascript",
                                                        "remove_512_non_english", "ftfy_fix_text",
                                                        "general_cleaning"};

struct Document {
  JsonObject object;
  std::u32string text;
  std::optional<std::string> problem;
};

Document document_of(const Line& line) {
  Document document;
  document.problem = document.object.parse(line.text);
  if (document.problem) return document;
  if (const std::string* const text = document.object.text("text")) {
    document.text = code_points(*text);
  } else {
    document.problem = "the object has no text \"text\"";
  }
  return document;
}

struct CleanResult {
  enum class Fate { kKept, kBad, kNotEnglish, kShort };
  Fate fate = Fate::kKept;
  std::string text;  // the new line, or the problem
  bool is_repaired = false;
};

class Cleaner {
 public:
  explicit Cleaner(const Tokenizer& tokenizer) : encoder_(tokenizer.make_encoder()) {}

  CleanResult clean(const Line& line) {
    using Fate = CleanResult::Fate;
    Document document = document_of(line);
    if (document.problem) return {Fate::kBad, *document.problem, false};
    const std::u32string text = repaired(document.text);
    const bool is_repaired = text != document.text;
    if (!is_english(text)) return {Fate::kNotEnglish, "", is_repaired};
    const std::string utf8 = to_utf8(text);
    if (text.size() < kShortCharacters && num_tokens(utf8) < kShortTokens) {
      return {Fate::kShort, "", is_repaired};
    }
    document.object.set_text("text", utf8);
    return {Fate::kKept, document.object.line(), is_repaired};
  }

 private:
  size_t num_tokens(const std::string& text) {
    ids_.clear();
    encoder_->append(text, ids_);
    return ids_.size();
  }

  std::unique_ptr<Encoder> encoder_;
  std::vector<int32_t> ids_;
};

// True if the text contains "javascript", in any case.
bool has_javascript(std::u32string_view text) {
  return lower_case(text).find(U"javascript") != std::u32string::npos;
}

bool applies(FixTask task, std::u32string_view text) {
  switch (task) {
    case FixTask::kRemove512:
      return text.size() < 512;
    case FixTask::kRemove256Javascript:
      return text.size() < 256 && has_javascript(text);
    case FixTask::kRemove512NonEnglish:
      return text.size() < 512 && !is_english(text);
    case FixTask::kFtfyFixText:
    case FixTask::kGeneralCleaning:
      return true;
  }
  return false;
}

struct FixResult {
  std::string text;  // the new line, or the problem
  bool is_bad = false;
  std::optional<FixTask> task;
};

FixResult fixed(const Line& line, const std::vector<FixTask>& tasks) {
  Document document = document_of(line);
  if (document.problem) return {*document.problem, true, std::nullopt};
  const auto task =
      std::ranges::find_if(tasks, [&](FixTask t) { return applies(t, document.text); });
  FixResult result;
  if (task != tasks.end()) result.task = *task;
  if (result.task == FixTask::kFtfyFixText) {
    document.object.set_text("text", to_utf8(repaired(document.text)));
  } else if (result.task == FixTask::kGeneralCleaning) {
    document.object.set_text("text", to_utf8(with_single_blanks(document.text)));
  }
  result.text = document.object.line();
  return result;
}

bool drops(std::optional<FixTask> task) { return task && *task < FixTask::kFtfyFixText; }

}  // namespace

CleanCounts clean_documents(const std::filesystem::path& input, const std::filesystem::path& output,
                            const Tokenizer& tokenizer, const RunOptions& options) {
  using Fate = CleanResult::Fate;
  expect_other_files({&input, 1}, {&output, 1});
  FileWriter writer(output);
  CleanCounts counts;
  const auto make_work = [&] {
    const auto cleaner = std::make_shared<Cleaner>(tokenizer);
    return [cleaner](const Line& line) { return cleaner->clean(line); };
  };
  const auto take = [&](const Line& line, CleanResult& result) {
    if (result.is_repaired) ++counts.repaired;
    if (result.fate == Fate::kNotEnglish) ++counts.not_english;
    if (result.fate == Fate::kShort) ++counts.short_texts;
    if (result.fate == Fate::kBad) {
      report_bad(options, line, result.text);
      ++counts.lines.bad;
    } else if (result.fate == Fate::kKept) {
      writer.write(result.text);
      writer.write("\n");
      ++counts.lines.written;
    }
  };
  counts.lines.lines = each_line<CleanResult>({&input, 1}, options, make_work, take);
  writer.commit();
  return counts;
}

FixTask fix_task_named(std::string_view name) {
  const auto* const found = std::ranges::find(kTaskNames, name);
  if (found == kTaskNames.end()) {
    throw ConfigError(
        fmt::format("--tasks {} is not known; use {}", name, fmt::join(kTaskNames, ", ")));
  }
  return static_cast<FixTask>(found - kTaskNames.begin());
}

std::u32string with_single_blanks(std::u32string_view text) {
  const auto is_word_end = [&](size_t i) {
    return i > 0 && (is_letter(text[i - 1]) || is_number(text[i - 1]) || text[i - 1] == U'_');
  };
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;  // of what one blank replaces
    if (text[i] == U' ') {
      while (end < text.size() && text[end] == U' ') ++end;
    } else if (text[i] == U'\n' && is_word_end(i)) {
      while (end < text.size() && text[end] == U'\n') ++end;
      if (end < text.size() && text[end] == U' ') ++end;
    }
    out += end > i ? U' ' : text[i];
    i = std::max(end, i + 1);
  }
  return out;
}

FixCounts fix_documents(const std::filesystem::path& input, const std::filesystem::path& folder,
                        const std::vector<FixTask>& tasks, const RunOptions& options) {
  const std::string name = input.stem().string();
  const std::string extension = input.extension().string();
  const std::vector<std::filesystem::path> outputs = {folder / (name + "_cleaned" + extension),
                                                      folder / (name + "_filtered" + extension)};
  expect_other_files({&input, 1}, outputs);
  std::vector<FixTask> ordered = tasks;
  std::ranges::sort(ordered);
  FileWriter cleaned(outputs[0]);
  FileWriter filtered(outputs[1]);
  FixCounts counts;
  counts.by_task.resize(kTaskNames.size());
  const auto take = [&](const Line& line, FixResult& result) {
    if (result.is_bad) {
      report_bad(options, line, result.text);
      ++counts.lines.bad;
      return;
    }
    if (result.task) ++counts.by_task[static_cast<size_t>(*result.task)];
    FileWriter& writer = drops(result.task) ? filtered : cleaned;
    writer.write(result.text);
    writer.write("\n");
    if (!drops(result.task)) ++counts.lines.written;
  };
  counts.lines.lines = each_line<FixResult>(
      {&input, 1}, options, [&] { return [&](const Line& line) { return fixed(line, ordered); }; },
      take);
  filtered.sync();
  cleaned.sync();
  filtered.commit();
  cleaned.commit();
  return counts;
}

}  // namespace megatron::corpus
