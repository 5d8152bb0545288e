#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megatron::hf {

// Pieces and their ids, in both directions.
class Vocabulary {
 public:
  Vocabulary() = default;
  // An object piece -> id. Throws FormatError on an id that is none.
  explicit Vocabulary(const nlohmann::json& object);
  Vocabulary(Vocabulary&&) = default;  // pieces_ points into ids_, so there are no copies
  Vocabulary& operator=(Vocabulary&&) = default;

  // An equal piece gets the new id.
  void add(const std::string& piece, int32_t id);
  std::optional<int32_t> id_of(std::string_view piece) const;
  // Throws FormatError with `use` if the piece is not there.
  int32_t required_id(std::string_view piece, std::string_view use) const;
  const std::string* piece(int32_t id) const;
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  const auto& ids() const { return ids_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> pieces_;  // by id
};

}  // namespace megatron::hf
