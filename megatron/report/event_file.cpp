#include "megatron/report/event_file.h"

#include <bit>
#include <cstring>
#include <optional>
#include <span>

#include "megatron/core/crc32c.h"
#include "megatron/report/console_lines.h"

namespace megatron::report {
namespace {

uint32_t masked_checksum(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T number = {};
  std::memcpy(&number, bytes.data() + at, sizeof(T));
  return number;
}

// Removes a record from the front: length, its checksum, data, its checksum.
std::optional<std::string_view> take_record(std::string_view& bytes) {
  constexpr size_t kHeader = 12;
  constexpr size_t kFooter = 4;
  if (bytes.size() < kHeader + kFooter) return std::nullopt;
  if (number_at<uint32_t>(bytes, 8) != masked_checksum(bytes.substr(0, 8))) return std::nullopt;
  const auto length = number_at<uint64_t>(bytes, 0);
  if (length > bytes.size() - kHeader - kFooter) return std::nullopt;
  const std::string_view data = bytes.substr(kHeader, length);
  if (number_at<uint32_t>(bytes, kHeader + length) != masked_checksum(data)) return std::nullopt;
  bytes.remove_prefix(kHeader + length + kFooter);
  return data;
}

// A field of a protobuf message: the value of a number, or the bytes of anything else.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

std::optional<uint64_t> take_varint(std::string_view& message) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// Removes a field from the front; nothing at the end and for a damaged one.
std::optional<Field> take_field(std::string_view& message) {
  const std::optional<uint64_t> key = take_varint(message);
  if (!key) return std::nullopt;
  Field field;
  field.number = *key >> 3;
  size_t size = 0;
  switch (*key & 7) {
    case 0: {
      const std::optional<uint64_t> value = take_varint(message);
      if (!value) return std::nullopt;
      field.value = *value;
      return field;
    }
    case 1:
      size = 8;
      break;
    case 2: {
      const std::optional<uint64_t> length = take_varint(message);
      if (!length || *length > message.size()) return std::nullopt;
      field.bytes = message.substr(0, *length);
      message.remove_prefix(*length);
      return field;
    }
    case 5:
      size = 4;
      break;
    default:
      return std::nullopt;
  }
  if (message.size() < size) return std::nullopt;
  field.value = size == 8 ? number_at<uint64_t>(message, 0) : number_at<uint32_t>(message, 0);
  message.remove_prefix(size);
  return field;
}

// Field numbers are TensorBoard's, as in megatron/training/event.proto.
class EventReader {
 public:
  explicit EventReader(RunHistory& history) : history_(history) {}

  void read(std::string_view event) {
    wall_time_ = 0;
    step_ = 0;
    std::string_view summary;
    while (const std::optional<Field> field = take_field(event)) {
      if (field->number == 1) wall_time_ = std::bit_cast<double>(field->value);
      if (field->number == 2) step_ = static_cast<int64_t>(field->value);
      if (field->number == 5) summary = field->bytes;
    }
    while (const std::optional<Field> field = take_field(summary)) {
      if (field->number == 1) read_value(field->bytes);
    }
  }

 private:
  void read_value(std::string_view value) {
    std::string_view tag;
    std::optional<float> number;
    std::string_view tensor;
    while (const std::optional<Field> field = take_field(value)) {
      if (field->number == 1) tag = field->bytes;
      if (field->number == 2) {
        number = std::bit_cast<float>(static_cast<uint32_t>(field->value));
      }
      if (field->number == 8) tensor = field->bytes;
    }
    constexpr std::string_view kText = "/text_summary";
    if (number) {
      take_scalar(tag, static_cast<double>(*number));
    } else if (tag.ends_with(kText)) {
      tag.remove_suffix(kText.size());
      while (const std::optional<Field> field = take_field(tensor)) {
        if (field->number == 8) history_.settings[std::string(tag)] = field->bytes;
      }
    }
  }

  void take_scalar(std::string_view tag, double value) {
    constexpr std::string_view kVsSamples = " vs samples";
    if (tag.ends_with(kVsSamples)) {
      if (tag.substr(0, tag.size() - kVsSamples.size()) == last_tag_) {
        history_.add("consumed_train_samples", static_cast<double>(step_));
      }
      return;
    }
    if (step_ < 0 || step_ > kMostIterations) return;
    last_tag_ = tag;
    history_.begin_record(step_);
    history_.add("wall_time", wall_time_);
    if (tag == "iteration-time") {
      history_.add("elapsed_ms_per_iteration", 1000 * value);
    } else {
      history_.add(metric_name(tag), value);
    }
  }

  RunHistory& history_;
  double wall_time_ = 0;
  int64_t step_ = 0;
  std::string last_tag_;
};

}  // namespace

bool is_event_file(std::string_view bytes) { return take_record(bytes).has_value(); }

void read_events(RunHistory& history, std::string_view bytes) {
  EventReader reader(history);
  while (const std::optional<std::string_view> record = take_record(bytes)) reader.read(*record);
}

}  // namespace megatron::report
