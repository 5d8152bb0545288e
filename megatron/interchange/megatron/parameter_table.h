#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/nn/module.h"
#include "megatron/transformer/config.h"

namespace megatron {

// Properties of a model's parameters, by name, from its modules. All layers share an entry.
class ParameterTable {
 public:
  explicit ParameterTable(const std::vector<Parameter>& parameters);

  // `name` has "{i}" or the number of a layer. The sharding has the division of the tensor, not the
  // rank. Throws Unsupported if the model has no such parameter.
  const ParameterInfo& at(std::string_view name) const;

 private:
  std::map<std::string, ParameterInfo, std::less<>> infos_;
};

// The parameters of all models of a kind, including optional ones.
ParameterTable parameter_table(ModelKind kind, bool is_gated);

}  // namespace megatron
