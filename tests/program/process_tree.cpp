#include "tests/program/process_tree.h"

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace megatron::program {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::vector<pid_t> descendants(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = content(entry.path() / "stat");
    const size_t at = stat.rfind(')');  // the name of the program may hold anything
    if (at == std::string::npos || std::atoi(stat.c_str() + at + 4) != parent) continue;
    found.push_back(std::atoi(name.c_str()));
    for (const pid_t below : descendants(found.back())) found.push_back(below);
  }
  return found;
}

pid_t descendant_with(pid_t parent, const std::string& variable) {
  for (const pid_t process : descendants(parent)) {
    const std::string environment = content("/proc/" + std::to_string(process) + "/environ");
    for (size_t begin = 0; begin < environment.size();) {
      const std::string each = environment.c_str() + begin;
      if (each == variable) return process;
      begin += each.size() + 1;
    }
  }
  return -1;
}

bool exists(pid_t process) { return ::kill(process, 0) == 0; }

}  // namespace megatron::program
