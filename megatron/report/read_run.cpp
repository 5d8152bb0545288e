#include "megatron/report/read_run.h"

#include <fmt/format.h>

#include <string_view>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/report/metrics_lines.h"

namespace megatron::report {

RunHistory read_run(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  RunHistory history;
  read_metrics(history, text);
  if (history.is_empty()) {
    throw FormatError(fmt::format(
        "{}: holds no run; expected JSON lines with the key \"iteration\", as --metrics-jsonl "
        "writes them",
        path.string()));
  }
  return history;
}

}  // namespace megatron::report
