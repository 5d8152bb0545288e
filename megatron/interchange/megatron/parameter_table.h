#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/nn/parameter.h"
#include "megatron/transformer/config.h"

namespace megatron {

// What the modules of a model say about its parameters, by name. All layers share an entry.
class ParameterTable {
 public:
  explicit ParameterTable(const std::vector<ParameterSpec>& specs);

  // `name` has "{i}" or the number of a layer. The sharding says how ranks divide the tensor, not
  // which rank this is. Throws Unsupported if the model has no such parameter.
  const ParameterInfo& at(std::string_view name) const;

 private:
  std::map<std::string, ParameterInfo, std::less<>> infos_;
};

// The parameters of every model of a kind: those that only some options make, too.
ParameterTable parameter_table(ModelKind kind, bool is_gated);

}  // namespace megatron
