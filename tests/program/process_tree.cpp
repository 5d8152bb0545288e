#include "tests/program/process_tree.h"

#include <signal.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace megatron::program {
namespace {

namespace fs = std::filesystem;

// Returns the part that could be read: a process may end while its file is open.
std::string process_tree_content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The numbers of the sockets that a process has open.
std::set<std::string> sockets_of(pid_t process) {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator("/proc/" + std::to_string(process) + "/fd", ignored)) {
    const std::string link = fs::read_symlink(entry.path(), ignored).string();
    if (link.starts_with("socket:[")) inodes.insert(link.substr(8, link.size() - 9));
  }
  return inodes;
}

}  // namespace

std::vector<pid_t> descendants(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = process_tree_content(entry.path() / "stat");
    const size_t at = stat.rfind(')');  // the name of the program may hold anything
    if (at == std::string::npos || std::atoi(stat.c_str() + at + 4) != parent) continue;
    found.push_back(std::atoi(name.c_str()));
    for (const pid_t below : descendants(found.back())) found.push_back(below);
  }
  return found;
}

pid_t descendant_with(pid_t parent, const std::string& variable) {
  for (const pid_t process : descendants(parent)) {
    const std::string environment =
        process_tree_content("/proc/" + std::to_string(process) + "/environ");
    for (size_t begin = 0; begin < environment.size();) {
      const std::string each = environment.c_str() + begin;
      if (each == variable) return process;
      begin += each.size() + 1;
    }
  }
  return -1;
}

std::vector<uint16_t> listening_ports(pid_t parent) {
  std::set<std::string> own = sockets_of(parent);
  for (const pid_t process : descendants(parent)) own.merge(sockets_of(process));
  std::vector<uint16_t> ports;
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::array<std::string, 10> word;  // 1: address:port in base 16; 3: the state; 9: the socket
    for (std::string& each : word) words >> each;
    constexpr const char* kListen = "0A";
    if (word[3] != kListen || !own.contains(word[9])) continue;
    const std::string port = word[1].substr(word[1].find(':') + 1);
    ports.push_back(static_cast<uint16_t>(std::stoul(port, nullptr, 16)));
  }
  return ports;
}

bool exists(pid_t process) { return ::kill(process, 0) == 0; }

}  // namespace megatron::program
