#include "megatron/optim/tied_parameters.h"

#include <map>
#include <string>

#include "megatron/comm/texts.h"

namespace megatron {
namespace {

// The names of a stage's tied parameters, a line each.
std::string names_of(std::span<const OptimizedParameter> parameters) {
  std::string names;
  for (const OptimizedParameter& parameter : parameters) {
    if (parameter.is_tied) names += parameter.name + '\n';
  }
  return names;
}

bool has_line(const std::string& lines, const std::string& line) {
  return ('\n' + lines).find('\n' + line + '\n') != std::string::npos;
}

}  // namespace

std::vector<TiedParameter> tied_parameters(std::span<const OptimizedParameter> parameters,
                                           const comm::Group& pipeline) {
  if (pipeline.size() == 1) return {};
  const std::vector<std::string> names = comm::gathered_texts(names_of(parameters), pipeline);
  std::map<std::string, const OptimizedParameter*> by_name;
  for (const OptimizedParameter& parameter : parameters) {
    if (parameter.is_tied) by_name[parameter.name] = &parameter;
  }
  std::map<std::vector<int>, comm::Group> groups;  // parameters on the same stages share one
  std::vector<TiedParameter> tied;
  for (const auto& [name, parameter] : by_name) {
    std::vector<int> stages;
    for (int stage = 0; stage < pipeline.size(); ++stage) {
      if (has_line(names[static_cast<size_t>(stage)], name)) stages.push_back(stage);
    }
    if (stages.size() == 1) continue;
    const auto [group, is_new] = groups.try_emplace(stages);
    if (is_new) group->second = pipeline.subgroup("tied parameters", stages);
    tied.push_back({name, parameter->variable, group->second});
  }
  return tied;
}

}  // namespace megatron
