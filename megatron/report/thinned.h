#pragma once

#include <span>
#include <vector>

#include "megatron/report/run_history.h"

namespace megatron::report {

// At most `most` of the points, for a curve that looks the same: the first, the last, and of each
// of (most - 2) / 3 equally wide ranges of iterations the smallest, the largest and the first that
// is not finite, in their order. REQUIRES: most is at least 5.
std::vector<Point> thinned(std::span<const Point> points, size_t most);

}  // namespace megatron::report
