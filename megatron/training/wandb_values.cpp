#include "megatron/training/wandb_values.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

namespace megatron {

std::string wandb_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  if (value == std::trunc(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return nlohmann::json(value).dump();
}

std::string wandb_json(const ArgValue& setting) {
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "null";
        } else if constexpr (std::is_same_v<T, double>) {
          return wandb_json(value);
        } else if constexpr (std::is_same_v<T, DType>) {
          return nlohmann::json(text_of(ArgValue(value))).dump();
        } else {
          return nlohmann::json(value).dump(-1, ' ', false, kReplace);
        }
      },
      setting);
}

}  // namespace megatron
