#pragma once

#include <span>
#include <string>
#include <string_view>

#include "megatron/report/run_history.h"

namespace megatron::report {

// Points of all curves of a page together: 12 bytes each leave a page below 5 MB.
inline constexpr size_t kPagePoints = 300'000;

// A run as the data of a page, in JSON without '<'. Its curves have at most `most_points` points
// together: each is thinned() to an equal share.
std::string run_json(std::string_view name, const RunHistory& history, size_t most_points);

// A whole page (HTML) that needs no other file: the runs are results of run_json().
std::string page_of(std::string_view title, std::span<const std::string> runs);

}  // namespace megatron::report
