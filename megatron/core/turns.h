#pragma once

#include <functional>
#include <utility>

// Two functions that take turns on one thread, as coroutines with stacks of their own: while one
// waits for something that needs no thread, such as a collective of a GPU, the other goes on.
namespace megatron {

// Runs both functions to their ends on this thread, `first` until its first start_other() or its
// end, and then `second`, each until its end_turn(). An exception of one ends the other at its next
// turn (the other's end_turn() throws what only take_turns() catches) and is thrown here.
//
// REQUIRES: no take_turns() is under way on this thread. Neither function calls end_turn() or
// start_other() in a catch block, in a destructor or under a lock.
void take_turns(const std::function<void()>& first, const std::function<void()>& second);

// Lets the other function go on, and returns at this one's next turn; at once if the other one has
// not begun or has ended, and outside of take_turns(). The same calls in the same functions make
// the same order: it depends on no time.
void end_turn();
// The same, and the other one may begin.
void start_other();
// True in take_turns().
bool takes_turns();

// State of which each of the two functions has its own, such as a mode of the thread that a scope
// in one of them changes. An object belongs to the thread that made it.
class TurnObserver {
 public:
  TurnObserver();
  virtual ~TurnObserver();
  TurnObserver(const TurnObserver&) = delete;
  TurnObserver& operator=(const TurnObserver&) = delete;

  // Both functions are about to begin, with what the thread has now.
  virtual void begin_turns() = 0;
  // The other one goes on: keep what the thread has now, restore what the other one had.
  virtual void change_turn() noexcept = 0;
};

// Makes a variable one of which each function has its own, while it lives.
template <class T>
class OwnInTurn final : public TurnObserver {
 public:
  explicit OwnInTurn(T& variable) : variable_(variable), other_(variable) {}

  void begin_turns() override { other_ = variable_; }
  void change_turn() noexcept override { std::swap(variable_, other_); }

 private:
  T& variable_;
  T other_;
};

// A variable of a thread of which each function has its own: thread_local ThreadMode<bool> x(true).
template <class T>
class ThreadMode {
 public:
  explicit ThreadMode(T value) : value_(value), own_(value_) {}

  T get() const { return value_; }
  // Returns the previous value.
  T set(T value) { return std::exchange(value_, value); }

 private:
  T value_;
  OwnInTurn<T> own_;
};

}  // namespace megatron
