#include "megatron/formats/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

}  // namespace

json read_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                    path);
}

json parse_json(std::string_view text, const std::filesystem::path& path) {
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) {
      throw FormatError(
          fmt::format("{}: JSON is nested deeper than {} levels; is this the right "
                      "file?",
                      path.string(), kMaxDepth));
    }
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      throw FormatError(fmt::format("{}: key {} occurs twice in one object; remove one of them",
                                    path.string(), parsed.get_ref<const std::string&>()));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::parse_error& error) {
    const auto at = std::min(text.size(), static_cast<size_t>(error.byte));
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
    throw FormatError(fmt::format("{}: is not valid JSON at byte {} (line {}); copy the file again",
                                  path.string(), error.byte, line));
  } catch (const json::exception&) {
    throw FormatError(fmt::format("{}: is not valid JSON; copy the file again", path.string()));
  }
}

}  // namespace megatron
