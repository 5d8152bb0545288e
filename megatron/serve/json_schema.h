#pragma once

#include "megatron/inference/text_pattern.h"
#include "megatron/jinja/value.h"

namespace megatron::serve {

// The JSON texts of a schema (json-schema.org, draft 2020-12): type, properties in their order,
// required, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, enum, const,
// anyOf, oneOf, and $ref to definitions that do not contain themselves. One blank may follow ':'
// and ','. Objects have only the properties that the schema lists; without any, and where the
// schema says nothing, JSON has at most four levels. Throws ConfigError that names what is not
// supported.
PatternPtr pattern_of_schema(const jinja::Value& schema);

// Any JSON object of at most four levels.
PatternPtr any_json_object();

}  // namespace megatron::serve
