#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/core/error.h"
#include "megatron/run/loaded_model.h"

// For commands that read texts or token ids, one per line, and broadcast them to all ranks.
namespace megatron::cli {

// Calls f(line, number) for every line of a file, or of standard input for "-".
void each_line(const std::string& file, const std::function<void(const std::string&, int64_t)>& f);

// The JSON object of a line. Throws ConfigError.
nlohmann::json object_of(const std::string& line);

// The ids of a JSON object {"ids": [...]} or {"text": "..."}. Throws ConfigError.
std::vector<int32_t> ids_of(const nlohmann::json& object, const LoadedModel& model);

// The ids of a text without the [CLS] and [SEP] that a tokenizer.json adds: for texts that are
// segments of a BERT's input.
std::vector<int32_t> inner_ids(const std::string& text, const Tokenizer& tokenizer);

// The integers of a field, [1, 2] or [[1, 2], [3, 4]], as rows; negative ones, such as -100, are
// allowed. Throws ConfigError.
std::vector<std::vector<int32_t>> integer_rows(const nlohmann::json& object, const char* field);

// Calls f and adds the position in the file to its errors.
template <class F>
void about_line(const std::string& file, int64_t number, const F& f) {
  try {
    f();
  } catch (const ConfigError& error) {
    throw ConfigError((file == "-" ? "standard input" : file) + ":" + std::to_string(number) +
                      ": " + error.what());
  }
}

// Broadcasts rank 0's value.
nlohmann::json shared(const nlohmann::json& value, const comm::Group& world);

// Rank 0 reads the lines of a file and converts each to a request; every rank calls f(request) for
// each, in order. The request's "number" is the line number, which errors of both steps name.
void each_request(const std::string& file, const comm::Group& world,
                  const std::function<nlohmann::json(const std::string& line)>& read,
                  const std::function<void(const nlohmann::json& request)>& f);

}  // namespace megatron::cli
