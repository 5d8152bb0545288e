// The unit in which scripts/build_cost.sh measures: headers and templates of the standard library
// alone.
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

std::map<std::string, std::vector<std::function<std::string(std::string)>>> found(
    const std::filesystem::path& folder, const std::string& pattern) {
  std::map<std::string, std::vector<std::function<std::string(std::string)>>> result;
  const std::regex regex(pattern);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::smatch match;
    const std::string name = entry.path().string();
    if (!std::regex_search(name, match, regex)) continue;
    result[match.str()].push_back([name](std::string text) {
      std::ostringstream out;
      out << name << ": " << text;
      return out.str();
    });
  }
  return result;
}
