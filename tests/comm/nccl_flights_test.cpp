#include "megatron/comm/nccl/flights.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

namespace megatron::comm::nccl {
namespace {

using std::chrono::seconds;

constexpr seconds kLimit{600};

// Events are numbers here; those that are done are in a set.
class FlightsTest : public testing::Test {
 protected:
  void queue(int number) {
    flights_.add({Operation::kAllReduce, DType::kFloat32, number}, begin_of(number),
                 end_of(number));
  }
  static int begin_of(int number) { return 2 * number; }
  static int end_of(int number) { return 2 * number + 1; }
  // The watchdog comes by.
  void look_at(seconds time) {
    flights_.look(
        start_ + time, [&](int event) { return done_.contains(event); },
        [&](const Flights<int>::Flight& flight) { landed_.insert(flight.call.count); });
  }
  // The number of the flight that is late; -1: none.
  int64_t late_at(seconds time) const {
    const Call* const call = flights_.late(start_ + time, kLimit);
    return call == nullptr ? -1 : call->count;
  }

  Flights<int> flights_;
  std::set<int> done_;
  std::set<int64_t> landed_;

 private:
  const Flights<int>::Clock::time_point start_{};
};

TEST_F(FlightsTest, NothingIsLateWithoutFlights) {
  look_at(seconds(1000));
  EXPECT_EQ(late_at(seconds(1000)), -1);
}

// A stream that has an hour of products to compute before.
TEST_F(FlightsTest, WaitingForOtherWorkOfTheStreamDoesNotCount) {
  queue(1);
  for (int time = 0; time <= 3600; time += 100) {
    look_at(seconds(time));
    EXPECT_EQ(late_at(seconds(time)), -1) << time;
  }
  done_.insert(begin_of(1));
  look_at(seconds(3700));
  EXPECT_EQ(late_at(seconds(3700)), -1);
  look_at(seconds(4299));
  EXPECT_EQ(late_at(seconds(4299)), -1);
  EXPECT_EQ(late_at(seconds(4300)), 1);
}

TEST_F(FlightsTest, EachHasTheWholeLimit) {
  queue(1);
  queue(2);
  done_.insert(begin_of(1));
  look_at(seconds(0));
  look_at(seconds(500));
  done_.insert({end_of(1), begin_of(2)});
  look_at(seconds(599));
  EXPECT_EQ(landed_, std::set<int64_t>{1});
  EXPECT_EQ(late_at(seconds(1000)), -1);
  EXPECT_EQ(late_at(seconds(1199)), 2);
  done_.insert(end_of(2));
  look_at(seconds(1200));
  EXPECT_EQ(late_at(seconds(2000)), -1);
  EXPECT_EQ(landed_, (std::set<int64_t>{1, 2}));
}

}  // namespace
}  // namespace megatron::comm::nccl
