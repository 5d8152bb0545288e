#include "megatron/kernels/algorithm_choice.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace megatron::kernels {
namespace {

// The relative gain over the first offer that counts as faster.
constexpr double kNoise = 0.01;

}  // namespace

ChoiceFile* choices_of_process() {
  // Never destroyed: plans, which live as long, refer to it.
  static ChoiceFile* const file = []() -> ChoiceFile* {
    const char* const name = std::getenv("MEGATRON_MATMUL_CACHE");
    if (name != nullptr && std::string_view(name) == "off") return nullptr;
    std::filesystem::path path = name == nullptr ? "" : name;
    if (path.empty() && !cache_directory().empty()) path = cache_directory() / "matmul.txt";
    return path.empty() ? nullptr : new ChoiceFile(path);
  }();
  return file;
}

size_t fastest(std::span<const double> ms) {
  const auto best = std::min_element(ms.begin(), ms.end());
  if (*best > ms.front() * (1 - kNoise)) return 0;
  return static_cast<size_t>(best - ms.begin());
}

size_t measured_choice(ChoiceFile& file, const std::string& question,
                       std::span<const std::string> names,
                       const std::function<std::vector<double>()>& measure) {
  auto answer = file.find(question);
  if (!answer) answer = file.remember(question, names[fastest(measure())]);
  const auto place = std::find(names.begin(), names.end(), *answer);
  return place == names.end() ? 0 : static_cast<size_t>(place - names.begin());
}

}  // namespace megatron::kernels
