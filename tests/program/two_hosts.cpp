#include "tests/program/two_hosts.h"

#include <unistd.h>

#include <cstdlib>

namespace megatron::program {
namespace {

bool did(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

}  // namespace

TwoHosts::TwoHosts() {
  are_there_ =
      did("ip netns add " + name(0)) && did("ip netns add " + name(1)) &&
      did("ip -n " + name(0) + " link add cable type veth peer name cable netns " + name(1));
  for (const int host : {0, 1}) {
    const std::string ip = "ip -n " + name(host);
    are_there_ = are_there_ && did(ip + " addr add " + address(host) + "/24 dev cable") &&
                 did(ip + " link set cable up") && did(ip + " link set lo up");
  }
}

TwoHosts::~TwoHosts() {
  for (const int host : {0, 1}) did("ip netns del " + name(host));
}

std::string TwoHosts::name(int host) const {
  return (host == 0 ? "left" : "right") + std::to_string(::getpid());
}

std::string TwoHosts::address(int host) { return host == 0 ? "10.77.0.1" : "10.77.0.2"; }

Words TwoHosts::launcher(int host) const {
  return {"ip",       "netns",   "exec",
          name(host), "unshare", "--uts",
          "sh",       "-c",      "hostname \"$0\" && exec \"$@\"",
          name(host)};
}

void TwoHosts::cut() const { did("ip -n " + name(0) + " link set cable down"); }

}  // namespace megatron::program
