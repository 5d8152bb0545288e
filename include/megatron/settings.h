#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron::api {

// Settings of a run, by the names of the flags of `megatron pretrain-gpt`:
//
//   Settings settings = {{"num-layers", 2}, {"lr", 1e-2}, {"mock-data", true}};
class Settings {
 public:
  // A value as the command line has it. A flag without a value is there if its value is true.
  class Value {
   public:
    Value(bool is_there) : is_there_(is_there) {}          // NOLINT(google-explicit-constructor)
    Value(int number) : Value(int64_t{number}) {}          // NOLINT(google-explicit-constructor)
    Value(int64_t number);                                 // NOLINT(google-explicit-constructor)
    Value(double number);                                  // NOLINT(google-explicit-constructor)
    Value(const char* text) : Value(std::string(text)) {}  // NOLINT(google-explicit-constructor)
    Value(std::string text) : texts_{std::move(text)} {}   // NOLINT(google-explicit-constructor)
    // Of a flag with several words: {"data-path", std::vector<std::string>{"0.3", "a", "0.7",
    // "b"}}.
    Value(std::vector<std::string> texts) : texts_(std::move(texts)) {}  // NOLINT

   private:
    friend class Settings;
    bool is_there_ = true;
    std::vector<std::string> texts_;
  };

  Settings() = default;
  Settings(std::initializer_list<std::pair<std::string_view, Value>> settings);

  // Replaces an earlier value.
  Settings& set(std::string_view name, const Value& value);

  // The command line: "--num-layers", "2", ...
  std::vector<std::string> words() const;

 private:
  std::vector<std::pair<std::string, Value>> settings_;
};

}  // namespace megatron::api
