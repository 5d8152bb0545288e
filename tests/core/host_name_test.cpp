#include "megatron/core/host_name.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(HostNameTest, KnowsTheNamesAndAddressesOfThisHost) {
  EXPECT_TRUE(is_this_host("localhost"));
  EXPECT_TRUE(is_this_host(host_name()));
  EXPECT_TRUE(is_this_host("127.0.0.1"));
  EXPECT_FALSE(is_this_host("192.0.2.1"));  // of documents (RFC 5737)
  EXPECT_FALSE(is_this_host("2001:db8::1"));
}

}  // namespace
}  // namespace megatron
