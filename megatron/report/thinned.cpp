#include "megatron/report/thinned.h"

#include <algorithm>
#include <cmath>

namespace megatron::report {
namespace {

// The kept points of a range, by their index; the first and the last range share no point.
struct Extremes {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t smallest = kNone;
  size_t largest = kNone;
  size_t not_finite = kNone;

  void take(std::span<const Point> points, size_t i) {
    const double value = points[i].value;
    if (std::isnan(value)) {
      if (not_finite == kNone) not_finite = i;
      return;
    }
    if (smallest == kNone || value < points[smallest].value) smallest = i;
    if (largest == kNone || value > points[largest].value) largest = i;
  }

  void move_to(std::vector<Point>& kept, std::span<const Point> points) {
    size_t chosen[] = {smallest, largest, not_finite};
    std::sort(std::begin(chosen), std::end(chosen));
    for (size_t i = 0; i < std::size(chosen) && chosen[i] != kNone; ++i) {
      if (i == 0 || chosen[i] != chosen[i - 1]) kept.push_back(points[chosen[i]]);
    }
    *this = {};
  }
};

}  // namespace

std::vector<Point> thinned(std::span<const Point> points, size_t most) {
  if (points.size() <= most) return {points.begin(), points.end()};
  const auto ranges = static_cast<int64_t>((most - 2) / 3);
  const int64_t first = points.front().iteration;
  const int64_t width = points.back().iteration - first + 1;
  std::vector<Point> kept = {points.front()};
  kept.reserve(most);
  Extremes extremes;
  int64_t range = 0;
  for (size_t i = 1; i + 1 < points.size(); ++i) {
    const int64_t own = (points[i].iteration - first) * ranges / width;
    if (own != range) extremes.move_to(kept, points);
    range = own;
    extremes.take(points, i);
  }
  extremes.move_to(kept, points);
  kept.push_back(points.back());
  return kept;
}

}  // namespace megatron::report
