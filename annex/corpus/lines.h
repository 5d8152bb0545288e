#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annex/corpus/ordered_work.h"
#include "megatron/core/file.h"
#include "megatron/data/line_reader.h"

// Files of lines, read as a stream: memory holds about 256 KB of lines for each thread, more if a
// single line is longer. Files packed with gzip or xz are unpacked on the way.
namespace megatron::corpus {

using Paths = std::span<const std::filesystem::path>;

// How a tool runs, and what it tells its caller.
struct RunOptions {
  int64_t threads = 1;
  int64_t log_interval = 0;                                  // lines; 0: no reports
  std::function<void(int64_t lines)> on_progress = {};       // lines read so far
  std::function<void(const std::string&)> on_bad_line = {};  // "file:line: reason"
};

struct LineCounts {
  int64_t lines = 0;    // read, with the bad ones
  int64_t written = 0;  // lines
  int64_t bad = 0;      // lines that are not what they must be; they are left out
};

struct Line {
  std::string_view text;
  const std::filesystem::path* file = nullptr;
  size_t file_number = 0;  // position of the file in the list
  int64_t number = 0;      // in its file, from 1
};

// "file:line: reason".
std::string about(const Line& line, std::string_view reason);

// A chunk of lines and the result of each.
template <class Result>
struct LineBatch {
  LineChunk chunk;
  std::filesystem::path file;
  size_t file_number = 0;
  std::vector<Result> results;

  Line line(size_t i) const {
    return {chunk.lines[i], &file, file_number, chunk.first_line + static_cast<int64_t>(i)};
  }
};

// Hands out the chunks of several files.
class LineFeed {
 public:
  explicit LineFeed(Paths files) : files_(files.begin(), files.end()) {}

  template <class Result>
  bool next(LineBatch<Result>& batch) {
    while (file_ < files_.size()) {
      if (!reader_) reader_.emplace(files_[file_]);
      if (reader_->next(batch.chunk)) {
        batch.file = files_[file_];
        batch.file_number = file_;
        return true;
      }
      reader_.reset();
      ++file_;
    }
    return false;
  }

 private:
  std::vector<std::filesystem::path> files_;
  size_t file_ = 0;
  std::optional<LineReader> reader_;
};

// Calls work(batch), which leaves a result for each line of the batch, on all threads, and
// take(line, result) in the order of the lines. make_work() makes the function of each thread.
// Returns the number of lines. Throws IoError, FormatError for damaged packed files, and what the
// functions throw.
template <class Result>
int64_t each_batch(Paths files, const RunOptions& options,
                   const std::function<std::function<void(LineBatch<Result>&)>()>& make_work,
                   const std::function<void(const Line&, Result&)>& take) {
  using Batch = LineBatch<Result>;
  LineFeed feed(files);
  int64_t lines = 0;
  const auto work_of_thread = [&] {
    return [work = make_work()](Batch& batch) {
      batch.results.clear();
      work(batch);
    };
  };
  const auto take_batch = [&](Batch& batch) {
    for (size_t i = 0; i < batch.results.size(); ++i) {
      take(batch.line(i), batch.results[i]);
      ++lines;
      const bool is_due = options.log_interval > 0 && lines % options.log_interval == 0;
      if (is_due && options.on_progress) options.on_progress(lines);
    }
  };
  work_in_order<Batch>(
      options.threads, [&](Batch& batch) { return feed.next(batch); }, work_of_thread, take_batch,
      "reading lines");
  return lines;
}

// A function that makes the result of a line, as one for a batch of lines.
template <class Result>
std::function<void(LineBatch<Result>&)> line_by_line(std::function<Result(const Line&)> work) {
  return [work = std::move(work)](LineBatch<Result>& batch) {
    for (size_t i = 0; i < batch.chunk.lines.size(); ++i) {
      batch.results.push_back(work(batch.line(i)));
    }
  };
}

// The same with a function that makes the result of a line.
template <class Result>
int64_t each_line(Paths files, const RunOptions& options,
                  const std::function<std::function<Result(const Line&)>()>& make_work,
                  const std::function<void(const Line&, Result&)>& take) {
  return each_batch<Result>(
      files, options, [&] { return line_by_line<Result>(make_work()); }, take);
}

// The result of a line in a tool that writes, changes or drops lines.
struct NewLine {
  enum class Kind { kWrite, kDrop, kBad };
  Kind kind = Kind::kDrop;
  std::string text;  // the line without its end, or the problem of a bad one

  static NewLine write(std::string text) { return {Kind::kWrite, std::move(text)}; }
  static NewLine drop() { return {}; }
  static NewLine bad(std::string problem) { return {Kind::kBad, std::move(problem)}; }
};

using LineWork = std::function<NewLine(const Line&)>;
using BatchWork = std::function<void(LineBatch<NewLine>&)>;

// Writes the new lines of all files, in their order, to one file, which appears as a whole or not
// at all. Bad lines are reported and counted. Throws ConfigError if an input is the output.
LineCounts rewrite_lines(Paths inputs, const std::filesystem::path& output,
                         const RunOptions& options, const std::function<LineWork()>& make_work);
// The same for work that is better done on many lines at once.
LineCounts rewrite_batches(Paths inputs, const std::filesystem::path& output,
                           const RunOptions& options, const std::function<BatchWork()>& make_work);

// The files of a folder whose names end with `extension`, by name, without the file `output`.
// Throws IoError, and ConfigError if there are none.
std::vector<std::filesystem::path> files_with_extension(const std::filesystem::path& folder,
                                                        std::string_view extension,
                                                        const std::filesystem::path& output);

// Throws ConfigError if two of the paths are the same file, or an output has no name.
void expect_other_files(Paths inputs, Paths outputs);

// Reports a bad line.
void report_bad(const RunOptions& options, const Line& line, std::string_view problem);

}  // namespace megatron::corpus
