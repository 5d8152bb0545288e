#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megatron/report/run_history.h"

namespace megatron::report {

// Points of all curves of a page together: 12 bytes each leave a page below 5 MB.
inline constexpr size_t kPagePoints = 300'000;

// A run as the data of a page, in JSON without '<'. Its curves have at most `most_points` points
// together: each is thinned() to an equal share. Only points after the iteration `after` count.
std::string run_json(std::string_view name, const RunHistory& history, size_t most_points,
                     int64_t after = -1);

// A whole page (HTML) that needs no other file: the runs are results of run_json().
std::string page_of(std::string_view title, std::span<const std::string> runs);

// The page of a run that goes on. It asks the server for run.json?id=ID&after=ITERATION again and
// again, first without an id:
//
//   {"id": "..", "after": i, "run": run_json(.., after)}
//
// Another id, or an `after` of -1, means that the run is given from its start.
std::string live_page_of(std::string_view title);

}  // namespace megatron::report
