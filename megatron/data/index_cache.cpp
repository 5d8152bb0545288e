#include "megatron/data/index_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/data/md5.h"

namespace megatron {
namespace {

// Measured, building and writing, on two cores with a disk of 0.5 GB/s.
constexpr double kSecondsPerSample = 1e-7;
constexpr double kLongSeconds = 5;

std::string size_text(const std::filesystem::path& file, uintmax_t size) {
  return fmt::format("{}: {} bytes, ", file.filename().string(), size);
}

std::string checksum_text(const std::filesystem::path& file) {
  return fmt::format("crc32c {:08x}, ", crc32c(MappedFile(file).bytes()));
}

std::string time_text(std::filesystem::file_time_type time) {
  const auto since_1970 = std::chrono::file_clock::to_sys(time).time_since_epoch();
  return fmt::format("written {} ns after 1970\n", std::chrono::nanoseconds(since_1970).count());
}

}  // namespace

IndexCache::IndexCache(std::filesystem::path directory, std::string_view class_name,
                       std::string description, Split split, CacheNaming naming,
                       std::filesystem::path data)
    : directory_(std::move(directory)),
      split_(split),
      stem_(fmt::format("{}-{}", md5_hex(description), class_name)),
      description_(std::move(description)),
      data_(std::move(data)) {
  std::error_code error;
  const auto size = std::filesystem::file_size(data_, error);
  if (!error) size_text_ = size_text(data_, size);
  const auto time = std::filesystem::last_write_time(data_, error);
  if (!error) time_text_ = time_text(time);

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
  if (!has_data()) return true;  // to compare with
  std::error_code error;
  if (std::filesystem::exists(state_file(), error)) {
    const std::string state = read_text(state_file());
    if (!state.starts_with(size_text_)) return false;
    // A copy has another time, and the same checksum.
    return state.ends_with(time_text_) || state.starts_with(size_text_ + checksum_text(data_));
  }
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
    if (has_data()) {
      write_text_atomically(state_file(), size_text_ + checksum_text(data_) + time_text_);
    }
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
