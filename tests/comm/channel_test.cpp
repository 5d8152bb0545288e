#include "megatron/comm/tcp/channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "megatron/comm/tcp/record.h"

namespace megatron::comm::tcp {
namespace {

using testing::HasSubstr;

struct Pair {
  Socket caller;
  Socket listener;
};

Pair connected() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

const Secret kSecret("a secret of thirty-two characters");

void advance(Channel& a, Channel& b) {
  for (int i = 0; i < 100; ++i) {
    a.advance();
    b.advance();
  }
}

TEST(ChannelTest, BothProveThemselvesAndExchangeRecords) {
  Pair pair = connected();
  Channel caller(std::move(pair.caller), Channel::End::kCaller, Purpose::kRanks, kSecret);
  Channel listener(std::move(pair.listener), Channel::End::kListener, Purpose::kRanks, kSecret);
  caller.send("first");
  caller.send("");
  listener.send(std::string(100'000, 'x'));
  advance(caller, listener);
  EXPECT_EQ(caller.state(), Channel::State::kOpen);
  EXPECT_EQ(listener.state(), Channel::State::kOpen);
  EXPECT_EQ(listener.next(), "first");
  EXPECT_EQ(listener.next(), std::nullopt);  // one at a time
  advance(caller, listener);
  EXPECT_EQ(listener.next(), "");
  EXPECT_EQ(caller.next(), std::string(100'000, 'x'));
}

TEST(ChannelTest, AnotherSecretOrPurposeIsAStranger) {
  struct Case {
    Secret secret;
    Purpose purpose;
  };
  for (const Case& other : {Case{Secret("another secret, as long as it is"), Purpose::kRanks},
                            Case{Secret(), Purpose::kRanks}, Case{kSecret, Purpose::kHosts}}) {
    Pair pair = connected();
    Channel caller(std::move(pair.caller), Channel::End::kCaller, other.purpose, other.secret);
    caller.send("not to be seen");
    Channel listener(std::move(pair.listener), Channel::End::kListener, Purpose::kRanks, kSecret);
    advance(caller, listener);
    EXPECT_NE(caller.state(), Channel::State::kOpen);
    EXPECT_NE(listener.state(), Channel::State::kOpen);
    EXPECT_EQ(listener.next(), std::nullopt);
  }
}

// A recorded conversation is good for nothing: the listener's random bytes differ each time.
TEST(ChannelTest, AReplayIsAStranger) {
  Pair pair = connected();
  Channel caller(std::move(pair.caller), Channel::End::kCaller, Purpose::kRanks, kSecret);
  Pair inner = connected();
  Channel listener(std::move(inner.listener), Channel::End::kListener, Purpose::kRanks, kSecret);
  std::string said;
  const auto pass = [&](int from, int to, std::string* kept) {
    std::array<char, 4096> buffer;
    const ssize_t count = ::recv(from, buffer.data(), buffer.size(), 0);
    if (count <= 0) return;
    if (kept != nullptr) kept->append(buffer.data(), static_cast<size_t>(count));
    ::send(to, buffer.data(), static_cast<size_t>(count), 0);
  };
  for (int i = 0; i < 10; ++i) {
    caller.advance();
    listener.advance();
    pass(pair.listener.get(), inner.caller.get(), &said);
    listener.advance();
    pass(inner.caller.get(), pair.listener.get(), nullptr);
  }
  ASSERT_EQ(listener.state(), Channel::State::kOpen);

  Pair again = connected();
  Channel second(std::move(again.listener), Channel::End::kListener, Purpose::kRanks, kSecret);
  ::send(again.caller.get(), said.data(), said.size(), 0);
  for (int i = 0; i < 10; ++i) second.advance();
  EXPECT_EQ(second.state(), Channel::State::kGone);
  EXPECT_TRUE(second.is_stranger());
  EXPECT_THAT(second.problem(), HasSubstr("does not know the secret"));
}

TEST(ChannelTest, AnotherProgramIsQuoted) {
  Pair pair = connected();
  Channel caller(std::move(pair.caller), Channel::End::kCaller, Purpose::kHosts, kSecret);
  const std::string text = "HTTP/1.1 400 Bad Request\r\n\x1b[31m and what follows";
  ::send(pair.listener.get(), text.data(), text.size(), 0);
  caller.advance();
  EXPECT_EQ(caller.state(), Channel::State::kGone);
  EXPECT_TRUE(caller.is_stranger());
  EXPECT_EQ(
      caller.problem(),
      "it is another program: it sent \"HTTP/1.1 400 Bad Request\\x0d\\x0a\\x1b[31m and what...\"");
}

TEST(ChannelTest, ARecordBeyondTheLimitEndsIt) {
  Pair pair = connected();
  Channel listener(std::move(pair.listener), Channel::End::kListener, Purpose::kRanks, kSecret);
  const int end = pair.caller.get();
  Channel caller(std::move(pair.caller), Channel::End::kCaller, Purpose::kRanks, kSecret);
  advance(caller, listener);
  ASSERT_EQ(listener.state(), Channel::State::kOpen);
  ::send(end, "\xff\xff\xff\xff", 4, 0);
  advance(caller, listener);
  EXPECT_EQ(listener.state(), Channel::State::kGone);
  EXPECT_THAT(listener.problem(), HasSubstr("4294967295 bytes, above the limit of 16777216"));
}

TEST(RecordTest, WhatIsNotThereIsNotRead) {
  RecordWriter writer;
  writer.number(7);
  writer.text("seven");
  RecordReader reader(writer.bytes());
  EXPECT_EQ(reader.number(), 7u);
  EXPECT_EQ(reader.text(), "seven");
  EXPECT_TRUE(reader.is_good() && reader.is_at_end());
  EXPECT_EQ(reader.number(), 0u);
  EXPECT_FALSE(reader.is_good());
  for (size_t size = 0; size < writer.bytes().size(); ++size) {
    RecordReader cut(std::string_view(writer.bytes()).substr(0, size));
    cut.number();
    cut.text();
    EXPECT_FALSE(cut.is_good());
  }
  RecordReader lying(std::string_view("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  EXPECT_EQ(lying.count(8), 0u);
  EXPECT_FALSE(lying.is_good());
}

}  // namespace
}  // namespace megatron::comm::tcp
