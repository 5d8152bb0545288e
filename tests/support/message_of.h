#pragma once

#include <gtest/gtest.h>

#include <string>

#include "megatron/core/error.h"

namespace megatron {

// The message of the exception of type E that f throws; fails the test if it throws none.
template <class E = Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no exception was thrown";
  return "";
}

}  // namespace megatron
