#include "megatron/formats/json_file.h"

#include <nlohmann/json.hpp>

#include "megatron/core/file.h"
#include "megatron/core/json.h"

namespace megatron {

nlohmann::json read_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                    path);
}

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path) {
  return parse_json(text, JsonLimits{.max_values = int64_t{1} << 28, .unique_keys = true},
                    path.string());
}

}  // namespace megatron
