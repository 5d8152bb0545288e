#include "megatron/core/turns.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace megatron {
namespace {

TEST(TurnsTest, TheSecondFunctionBeginsWhereTheFirstOneSays) {
  std::string order;
  take_turns(
      [&] {
        order += "a";
        end_turn();  // nobody else yet
        order += "b";
        start_other();
        order += "c";
        end_turn();
        order += "d";
      },
      [&] {
        order += "1";
        end_turn();
        order += "2";
        end_turn();
        order += "3";
      });
  EXPECT_EQ(order, "ab1c2d3");
}

TEST(TurnsTest, TheSecondFunctionBeginsAfterAFirstOneWithoutTurns) {
  std::string order;
  take_turns([&] { order += "a"; },
             [&] {
               order += "1";
               end_turn();
               order += "2";
             });
  EXPECT_EQ(order, "a12");
}

TEST(TurnsTest, TheFirstFunctionGoesOnAfterTheSecond) {
  std::string order;
  take_turns(
      [&] {
        start_other();
        order += "a";
        end_turn();
        order += "b";
      },
      [&] { order += "1"; });
  EXPECT_EQ(order, "1ab");
}

TEST(TurnsTest, NothingIsATurnOutside) {
  EXPECT_FALSE(takes_turns());
  end_turn();
  start_other();
  take_turns([] { EXPECT_TRUE(takes_turns()); }, [] { EXPECT_TRUE(takes_turns()); });
  EXPECT_FALSE(takes_turns());
}

struct Noted {
  explicit Noted(std::string& text) : text(text) {}
  ~Noted() { text += "~"; }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;
  std::string& text;
};

TEST(TurnsTest, AnErrorOfTheFirstEndsTheSecond) {
  std::string order;
  EXPECT_THROW(take_turns(
                   [&] {
                     start_other();
                     throw std::runtime_error("first");
                   },
                   [&] {
                     const Noted noted(order);
                     end_turn();
                     order += "never";
                   }),
               std::runtime_error);
  EXPECT_EQ(order, "~");
  EXPECT_FALSE(takes_turns());
}

TEST(TurnsTest, AnErrorOfTheSecondEndsTheFirst) {
  std::string order;
  EXPECT_THROW(take_turns(
                   [&] {
                     const Noted noted(order);
                     start_other();
                     order += "a";
                     end_turn();
                     order += "never";
                   },
                   [&] {
                     end_turn();
                     throw std::runtime_error("second");
                   }),
               std::runtime_error);
  EXPECT_EQ(order, "a~");
}

TEST(TurnsTest, ASecondFunctionThatHasNotBegunDoesNotBeginAfterAnError) {
  bool has_begun = false;
  EXPECT_THROW(take_turns([] { throw std::runtime_error("first"); }, [&] { has_begun = true; }),
               std::runtime_error);
  EXPECT_FALSE(has_begun);
}

TEST(TurnsTest, ErrorsInsideOfAFunctionAreItsOwn) {
  const auto catches = [] {
    for (int i = 0; i < 3; ++i) {
      try {
        throw std::runtime_error("caught");
      } catch (const std::runtime_error&) {
      }
      start_other();
    }
  };
  take_turns(catches, catches);
}

thread_local ThreadMode<int> mode(0);

// Sets the mode while it lives.
class ModeScope {
 public:
  explicit ModeScope(int value) : previous_(mode.set(value)) {}
  ~ModeScope() { mode.set(previous_); }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  int previous_;
};

TEST(TurnsTest, EachFunctionHasItsModes) {
  const ModeScope outer(7);
  std::vector<int> seen;
  const auto changes = [&](int value) {
    return [&seen, value] {
      seen.push_back(mode.get());
      const ModeScope scope(value);
      start_other();
      seen.push_back(mode.get());
      end_turn();
      seen.push_back(mode.get());
    };
  };
  take_turns(changes(1), changes(2));
  EXPECT_EQ(seen, (std::vector<int>{7, 7, 1, 2, 1, 2}));
  EXPECT_EQ(mode.get(), 7);
}

TEST(TurnsTest, EachFunctionHasAVariableOfItsOwn) {
  int variable = 5;
  const OwnInTurn<int> own(variable);
  std::vector<int> seen;
  const auto counts = [&](int by) {
    return [&, by] {
      variable += by;
      start_other();
      seen.push_back(variable);
    };
  };
  take_turns(counts(1), counts(10));
  EXPECT_EQ(seen, (std::vector<int>{6, 15}));
  EXPECT_EQ(variable, 6);  // the first function's
}

TEST(TurnsTest, ThreadsTakeTurnsApart) {
  const auto run = [] {
    int sum = 0;
    for (int round = 0; round < 100; ++round) {
      const auto add = [&] {
        for (int i = 0; i < 10; ++i) {
          ++sum;
          start_other();
        }
      };
      take_turns(add, add);
    }
    EXPECT_EQ(sum, 2000);
  };
  std::thread other(run);
  run();
  other.join();
}

}  // namespace
}  // namespace megatron
