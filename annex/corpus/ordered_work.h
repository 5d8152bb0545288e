#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "megatron/core/start_threads.h"
#include "megatron/data/ordered_section.h"

namespace megatron::corpus {

// Takes items through three steps on `threads` threads:
//   next(item)  fills an item, or returns false at the end; one call at a time
//   work(item)  on all threads at once; make_work() makes the function of each thread
//   take(item)  one call at a time, in the order of the items
// A thread reuses its item, so memory holds one item for each thread. Rethrows the first exception
// of any step.
template <class Item>
void work_in_order(int64_t threads, const std::function<bool(Item&)>& next,
                   const std::function<std::function<void(Item&)>()>& make_work,
                   const std::function<void(Item&)>& take, std::string_view purpose) {
  std::mutex next_mutex;
  int64_t next_number = 0;
  OrderedSection section;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  const auto take_number = [&](Item& item, int64_t& number) {
    const std::lock_guard lock(next_mutex);
    if (!next(item)) return false;
    number = next_number++;
    return true;
  };
  const auto work_off = [&] {
    try {
      const std::function<void(Item&)> work = make_work();
      Item item;
      int64_t number = 0;
      while (take_number(item, number)) {
        work(item);
        if (!section.run(number, [&] { take(item); })) return;
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      section.abort();
    }
  };
  std::vector<std::thread> others = start_threads(threads - 1, work_off, purpose);
  work_off();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace megatron::corpus
