#include "megatron/data/index_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/data/md5.h"

namespace megatron {
namespace {

// Measured, building and writing, on two cores with a disk of 0.5 GB/s.
constexpr double kSecondsPerSample = 1e-7;
constexpr double kLongSeconds = 5;

// Size and time of a file, for a file of text; empty if there is none.
std::string state_of(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  if (error) return {};
  const auto time = std::filesystem::last_write_time(file, error);
  if (error) return {};
  const auto since_1970 = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return fmt::format("{}: {} bytes, written {} ns after 1970\n", file.filename().string(), size,
                     std::chrono::nanoseconds(since_1970).count());
}

}  // namespace

IndexCache::IndexCache(std::filesystem::path directory, std::string_view class_name,
                       std::string description, Split split, CacheNaming naming,
                       std::filesystem::path data)
    : directory_(std::move(directory)),
      split_(split),
      stem_(fmt::format("{}-{}", md5_hex(description), class_name)),
      description_(std::move(description)),
      data_(std::move(data)),
      state_(state_of(data_)) {
  if (naming == CacheNaming::kWithSplit) stem_ += fmt::format("-{}", split_name(split));
}

std::filesystem::path IndexCache::array_file(std::string_view name) const {
  return directory_ / fmt::format("{}-{}.npy", stem_, name);
}

std::filesystem::path IndexCache::description_file() const {
  return directory_ / (stem_ + "-description.txt");
}

std::filesystem::path IndexCache::state_file() const { return directory_ / (stem_ + "-data.txt"); }

bool IndexCache::holds(std::initializer_list<std::string_view> names) const {
  std::error_code ignored;
  const bool exists = std::filesystem::is_regular_file(description_file(), ignored) &&
                      std::all_of(names.begin(), names.end(), [&](std::string_view name) {
                        return std::filesystem::is_regular_file(array_file(name), ignored);
                      });
  if (!exists || is_of_present_data(names)) return exists;
  warn(fmt::format("{}: the cached index is of another state of {}; rebuilding it",
                   description_file().string(), data_.string()));
  return false;
}

bool IndexCache::is_of_present_data(std::initializer_list<std::string_view> names) const {
  if (state_.empty()) return true;  // there are no data to compare with
  std::error_code error;
  if (std::filesystem::exists(state_file(), error)) return read_text(state_file()) == state_;
  const auto written = std::filesystem::last_write_time(data_, error);
  return !error && std::all_of(names.begin(), names.end(), [&](std::string_view name) {
    const auto cached = std::filesystem::last_write_time(array_file(name), error);
    return !error && cached >= written;
  });
}

void IndexCache::announce(int64_t num_samples, int64_t bytes) const {
  const double seconds = kSecondsPerSample * static_cast<double>(num_samples);
  if (seconds < kLongSeconds) return;
  print_line(fmt::format(
      "> ordering {} samples of the {} split: about {:.0f} s, {:.1f} GB of memory, and as much on "
      "the disk in {}; fewer iterations start sooner",
      num_samples, split_name(split_), seconds, static_cast<double>(bytes) / 1e9,
      directory_.string()));
}

bool IndexCache::save(const std::function<void()>& save_arrays) const {
  std::string reason;
  try {
    std::filesystem::create_directories(directory_);
    save_arrays();
    if (!state_.empty()) write_text_atomically(state_file(), state_);
    write_text_atomically(description_file(), description_);
    return true;
  } catch (const IoError& error) {
    reason = error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    reason = error.what();
  }
  warn(
      fmt::format("dataset index is not cached ({}); name a writable directory with "
                  "--data-cache-path to save the time of building it at every start",
                  reason));
  return false;
}

}  // namespace megatron
