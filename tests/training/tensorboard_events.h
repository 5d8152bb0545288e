#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/crc32c.h"
#include "megatron/training/event.pb.h"

namespace megatron {

inline uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The events of a file of TFRecords, with both checksums of each verified.
inline std::vector<tensorboard::Event> events_of(const std::string& file) {
  std::vector<tensorboard::Event> events;
  std::string_view rest = file;
  while (!rest.empty()) {
    uint64_t length = 0;
    uint32_t length_crc = 0;
    uint32_t data_crc = 0;
    std::memcpy(&length, rest.data(), 8);
    std::memcpy(&length_crc, rest.data() + 8, 4);
    EXPECT_EQ(length_crc, masked_crc(rest.substr(0, 8)));
    const std::string_view data = rest.substr(12, length);
    std::memcpy(&data_crc, rest.data() + 12 + length, 4);
    EXPECT_EQ(data_crc, masked_crc(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(data)));
    rest.remove_prefix(16 + length);
  }
  return events;
}

}  // namespace megatron
