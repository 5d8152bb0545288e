#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace megatron {

// Appends scalars and texts to a TensorBoard event file
// (<directory>/events.out.tfevents.<time>.<host>.<pid>). The file grows while the run goes on and
// is readable at any time; flush() hands everything so far to the operating system. Every call
// throws IoError with path and reason.
class TensorBoardWriter {
 public:
  explicit TensorBoardWriter(const std::filesystem::path& directory);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  void add_scalar(std::string_view tag, double value, int64_t step);
  void add_text(std::string_view tag, std::string_view text, int64_t step);
  void flush();

  const std::filesystem::path& path() const { return path_; }

 private:
  void append_record(const std::string& event);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace megatron
