#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron report`: writes a page that compares training runs (docs/report.md).
int report_runs(std::span<const std::string> words);

}  // namespace megatron::cli
