#include "megatron/device/architectures.h"

#include <charconv>
#include <optional>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

struct Architecture {
  int capability = 0;   // 80: 8.0, 120: 12.0
  std::string letter;   // "a", "f" or empty
  bool has_ptx = true;  // the driver translates PTX for the GPU itself and for later ones

  int major() const { return capability / 10; }
  int minor() const { return capability % 10; }
  bool runs_on(int other_major, int other_minor) const {
    const bool is_same_major = major() == other_major;
    if (letter == "a") return is_same_major && minor() == other_minor;
    if (is_same_major && minor() <= other_minor) return true;
    return has_ptx && letter.empty() && major() < other_major;
  }
};

std::optional<Architecture> parsed(std::string_view text) {
  Architecture one;
  const char* const end = text.data() + text.size();
  const auto [rest_begin, error] = std::from_chars(text.data(), end, one.capability);
  std::string_view rest(rest_begin, static_cast<size_t>(end - rest_begin));
  if (error != std::errc()) return std::nullopt;
  if (rest.starts_with('a') || rest.starts_with('f')) {
    one.letter = rest.front();
    rest.remove_prefix(1);
  }
  if (rest == "-real") {
    one.has_ptx = false;
  } else if (!rest.empty() && rest != "-virtual") {
    return std::nullopt;
  }
  return one;
}

std::vector<Architecture> all_of(std::string_view architectures) {
  std::vector<Architecture> all;
  for (std::string_view rest = architectures; !rest.empty();) {
    const size_t comma = rest.find(',');
    const auto one = parsed(rest.substr(0, comma));
    invariant(one.has_value(), "the build names architectures as CMake does");
    all.push_back(*one);
    rest.remove_prefix(comma == rest.npos ? rest.size() : comma + 1);
  }
  return all;
}

}  // namespace

bool has_code_for(std::string_view architectures, int major, int minor) {
  for (const Architecture& one : all_of(architectures)) {
    if (one.runs_on(major, minor)) return true;
  }
  return false;
}

std::string gpus_of(std::string_view architectures) {
  std::string text;
  for (const Architecture& one : all_of(architectures)) {
    if (!text.empty()) text += ", ";
    text += std::to_string(one.major()) + '.' + std::to_string(one.minor()) + one.letter;
    if (one.has_ptx && one.letter.empty()) text += " and later";
  }
  return text;
}

}  // namespace megatron
