#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/core/arg_map.h"

namespace megatron::api {

// Settings of a run, by the names of the flags of `megatron pretrain-gpt`:
//
//   Settings settings = {{"num-layers", 2}, {"lr", 1e-2}, {"mock-data", true}};
class Settings {
 public:
  // A value as the command line has it. A flag without a value is there if its value is true.
  class Value {
   public:
    // Implicit, so that the list above needs no names of types.
    // NOLINTBEGIN(google-explicit-constructor)
    Value(bool is_there) : is_there_(is_there) {}
    Value(int number) : Value(int64_t{number}) {}
    Value(int64_t number);
    Value(double number);
    Value(const char* text) : Value(std::string(text)) {}
    Value(std::string text) : texts_{std::move(text)} {}
    // For a flag with several words, such as the weights and paths of data-path.
    Value(std::vector<std::string> texts) : texts_(std::move(texts)) {}
    // NOLINTEND(google-explicit-constructor)

   private:
    friend class Settings;
    bool is_there_ = true;
    std::vector<std::string> texts_;
  };

  Settings() = default;
  Settings(std::initializer_list<std::pair<std::string_view, Value>> settings);

  // Replaces an earlier value.
  Settings& set(std::string_view name, const Value& value);

  // A setting by its name in Megatron-LM's arguments, which applies after the flags:
  // {"add_bias_linear", false}.
  Settings& set_argument(std::string_view name, ArgValue value);
  // A config.json of Hugging Face, or its folder: the architecture of the model, except for
  // settings that have a value here.
  Settings& set_model_config(std::string path);

  // The command line: "--num-layers", "2", ...
  std::vector<std::string> words() const;
  const std::vector<std::pair<std::string, ArgValue>>& arguments() const { return arguments_; }
  const std::string& model_config() const { return model_config_; }

 private:
  std::vector<std::pair<std::string, Value>> settings_;
  std::vector<std::pair<std::string, ArgValue>> arguments_;
  std::string model_config_;
};

}  // namespace megatron::api
