#pragma once

#include <string>

#include "tests/program/program.h"

namespace megatron::program {

// Two hosts on this machine: network namespaces with their own host names, joined by a cable.
class TwoHosts {
 public:
  TwoHosts();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  // False if this user may not create them.
  bool are_there() const { return are_there_; }
  std::string name(int host) const;
  static std::string address(int host);
  // The words before a program's words that run it on a host.
  Words launcher(int host) const;
  // Pulls the cable.
  void cut() const;

 private:
  bool are_there_ = false;
};

}  // namespace megatron::program
