#pragma once

#include <atomic>
#include <cstdint>

namespace megatron {

// A memory budget shared by all requests, in bytes. Thread safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t most) : left_(most) {}

  // Reserves bytes; false, reserving none, if too few are left.
  bool take(int64_t bytes) {
    if (left_.fetch_sub(bytes) >= bytes) return true;
    left_ += bytes;
    return false;
  }
  void give_back(int64_t bytes) { left_ += bytes; }
  int64_t left() const { return left_; }

 private:
  std::atomic<int64_t> left_;
};

// A reservation of a budget; the destructor releases it.
class BudgetShare {
 public:
  explicit BudgetShare(ByteBudget& budget) : budget_(budget) {}
  ~BudgetShare() { shrink_to(0); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

  // False if the budget has too little left.
  bool grow_to(int64_t bytes) {
    if (bytes <= held_) return true;
    if (!budget_.take(bytes - held_)) return false;
    held_ = bytes;
    return true;
  }
  void shrink_to(int64_t bytes) {
    if (bytes >= held_) return;
    budget_.give_back(held_ - bytes);
    held_ = bytes;
  }
  int64_t held() const { return held_; }

 private:
  ByteBudget& budget_;
  int64_t held_ = 0;
};

}  // namespace megatron
