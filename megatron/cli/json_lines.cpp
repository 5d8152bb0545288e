#include "megatron/cli/json_lines.h"

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "megatron/comm/collectives.h"
#include "megatron/core/json.h"
#include "megatron/core/next_line.h"

namespace megatron::cli {
namespace {

using nlohmann::json;

// Rejects numbers outside any vocabulary, which would otherwise wrap around to an id.
int32_t id_of(const json& value) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  const bool is_id = value.is_number_integer() && value >= 0 && value <= kLargest;
  if (is_id) return value.get<int32_t>();
  throw ConfigError(fmt::format("token id {} must be an integer between 0 and {}",
                                shortened_json(value), kLargest));
}

std::vector<int32_t> integers_of(const json& list, const char* field) {
  std::vector<int32_t> values;
  for (const json& value : list) {
    const bool is_small = value.is_number_integer() &&
                          value >= std::numeric_limits<int32_t>::min() &&
                          value <= std::numeric_limits<int32_t>::max();
    if (!is_small) {
      throw ConfigError(fmt::format("\"{}\" contains {}; it must contain only integers", field,
                                    shortened_json(value)));
    }
    values.push_back(value.get<int32_t>());
  }
  return values;
}

}  // namespace

void each_line(const std::string& file, const std::function<void(const std::string&, int64_t)>& f) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file);
    if (!stream) throw IoError(fmt::format("{}: cannot open; check the path", file));
  }
  std::istream& in = file == "-" ? std::cin : stream;
  const std::string place = file == "-" ? "standard input" : file;
  std::string line;
  for (int64_t number = 1; next_line(in, line, number, place); ++number) f(line, number);
}

json object_of(const std::string& line) {
  json value;
  try {
    value = parse_json(line, kJsonLine, "this line");
  } catch (const JsonTooLarge& error) {
    throw ConfigError(error.what());
  } catch (const FormatError&) {
    throw ConfigError(
        "this is not JSON; write a line as {\"text\": \"...\"} or {\"ids\": [1, 2, 3]}");
  }
  if (value.is_object()) return value;
  throw ConfigError(
      "this JSON is not an object; write a line as {\"text\": \"...\"} or {\"ids\": [1, 2, 3]}");
}

std::vector<int32_t> ids_of(const json& object, const LoadedModel& model) {
  if (object.contains("ids")) {
    if (!object.at("ids").is_array()) throw ConfigError("\"ids\" must be a list of integers");
    std::vector<int32_t> ids;
    for (const json& value : object.at("ids")) ids.push_back(id_of(value));
    return ids;
  }
  if (object.contains("text")) {
    if (!object.at("text").is_string()) throw ConfigError("\"text\" must be a string");
    return model.required_tokenizer().encode(object.at("text").get<std::string>());
  }
  throw ConfigError("an object needs \"ids\" or \"text\"");
}

std::vector<std::vector<int32_t>> integer_rows(const json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || found->is_null()) return {};
  if (!found->is_array()) {
    throw ConfigError(fmt::format("\"{}\" must be a list of integers", field));
  }
  if (found->empty() || !found->front().is_array()) return {integers_of(*found, field)};
  std::vector<std::vector<int32_t>> rows;
  for (const json& row : *found) {
    if (!row.is_array()) {
      throw ConfigError(fmt::format("\"{}\" must be a list of lists, or of integers", field));
    }
    rows.push_back(integers_of(row, field));
  }
  return rows;
}

json shared(const json& value, const comm::Group& world) {
  if (world.size() == 1) return value;
  const auto broadcast = [&](TensorView bytes) { comm::broadcast(bytes, 0, world, Stream{}); };
  std::string text = dump_json(value);
  auto size = static_cast<int64_t>(text.size());
  broadcast({&size, {1}, DType::kInt64});
  text.resize(static_cast<size_t>(size));
  broadcast({text.data(), {size}, DType::kUInt8});
  return parse_json(text, kJsonLine, "a request");
}

void each_request(const std::string& file, const comm::Group& world,
                  const std::function<json(const std::string& line)>& read,
                  const std::function<void(const json& request)>& f) {
  const auto run = [&](const json& request) {
    about_line(file, request.at("number"), [&] { f(request); });
  };
  const json end;
  if (world.rank() == 0) {
    each_line(file, [&](const std::string& line, int64_t number) {
      json request;
      about_line(file, number, [&] { request = read(line); });
      request["number"] = number;
      run(shared(request, world));
    });
    shared(end, world);
  } else {
    for (json request = shared(end, world); request != end; request = shared(end, world)) {
      run(request);
    }
  }
}

std::vector<int32_t> inner_ids(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  std::erase_if(ids, [&](int32_t id) {
    return id == tokenizer.special_id(SpecialToken::kCls) ||
           id == tokenizer.special_id(SpecialToken::kSep);
  });
  return ids;
}

}  // namespace megatron::cli
