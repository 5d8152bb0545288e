#include "megatron/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/formats/json_file.h"
#include "megatron/formats/safetensors.h"

namespace megatron {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "mgt1";
constexpr int kVersion = 1;
constexpr const char* kWriter = "megatron.cpp";
constexpr JsonLimits kManifestPart = {.max_values = int64_t{1} << 28};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                             DType::kInt64,   DType::kInt32,   DType::kInt16,    DType::kInt8,
                             DType::kUInt64,  DType::kUInt32,  DType::kUInt16,   DType::kUInt8,
                             DType::kBool};

[[noreturn]] void malformed(std::string_view what) {
  throw FormatError(std::string(what));  // read_manifest adds the path
}

DType dtype_named(const json& name) {
  for (const DType dtype : kDTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  malformed(fmt::format("{} is not a dtype", shortened_json(name)));
}

json json_of(double value) {
  // JSON has no other form for these.
  if (!std::isfinite(value)) return {{"double", fmt::format("{}", value)}};
  return value;
}

json json_of(const ArgValue& value) {
  return std::visit(
      []<class T>(const T& v) -> json {
        if constexpr (std::is_same_v<T, std::monostate>) return nullptr;
        if constexpr (std::is_same_v<T, DType>) return {{"dtype", name_of(v)}};
        if constexpr (std::is_same_v<T, double>) return json_of(v);
        if constexpr (!std::is_same_v<T, std::monostate> && !std::is_same_v<T, DType> &&
                      !std::is_same_v<T, double>) {
          return v;
        }
      },
      value);
}

json json_of(const ArgMap& args) {
  json object = json::object();
  for (const auto& [name, value] : args) object[name] = json_of(value);
  return object;
}

ArgValue special_value(const json& object) {
  if (object.contains("dtype")) return dtype_named(object["dtype"]);
  const std::string text = object.at("double").get<std::string>();
  const double infinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return infinity;
  if (text == "-inf") return -infinity;
  return std::numeric_limits<double>::quiet_NaN();
}

ArgValue value_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return std::monostate();
    case json::value_t::boolean:
      return value.get<bool>();
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return value.get<int64_t>();
    case json::value_t::number_float:
      return value.get<double>();
    case json::value_t::string:
      return value.get<std::string>();
    case json::value_t::array:
      if (!value.empty() && value[0].is_string()) return value.get<std::vector<std::string>>();
      return value.get<std::vector<int64_t>>();
    default:
      return special_value(value);
  }
}

ArgMap args_of(const json& object) {
  ArgMap args;
  for (const auto& [name, value] : object.items()) args.emplace(name, value_of(value));
  return args;
}

json json_of(const Shape& shape) {
  return std::vector<int64_t>(shape.dims().begin(), shape.dims().end());
}

// A shape whose number of bytes does not overflow.
Shape shape_of(const json& extents) {
  const auto dims = extents.get<std::vector<int64_t>>();
  int64_t bytes = size_of(DType::kFloat64);
  for (const int64_t extent : dims) {
    if (extent < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes)) {
      malformed(fmt::format("{} is not a shape", shortened_json(extents)));
    }
  }
  if (dims.size() > Shape::kMaxDims)
    malformed(fmt::format("{} has too many axes", shortened_json(extents)));
  return Shape(dims);
}

std::string hex_of(uint32_t crc) { return fmt::format("{:08x}", crc); }

uint32_t crc_of(const json& text) {
  const auto digits = text.get<std::string>();
  if (digits.size() != 8 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    malformed(fmt::format("{} is not a CRC of 8 hexadecimal digits", shortened_json(text)));
  }
  return static_cast<uint32_t>(std::stoul(digits, nullptr, 16));
}

uint64_t tensor_hash_of(const json& text) {
  const auto digits = text.get<std::string>();
  if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    malformed(fmt::format("{} is not a hash of 16 hexadecimal digits", shortened_json(text)));
  }
  return std::stoull(digits, nullptr, 16);
}

json json_of(const Manifest::Tensor& tensor) {
  json chunks = json::array();
  for (const Manifest::Chunk& chunk : tensor.chunks) {
    chunks.push_back({{"file", chunk.file},
                      {"key", chunk.key},
                      {"offset", chunk.region.offset},
                      {"shape", json_of(chunk.region.shape)},
                      {"crc32c", hex_of(chunk.crc)}});
  }
  json object = {
      {"shape", json_of(tensor.shape)}, {"dtype", name_of(tensor.dtype)}, {"chunks", chunks}};
  if (tensor.hash) object["hash"] = fmt::format("{:016x}", *tensor.hash);
  return object;
}

// Why the chunks of a tensor do not tile it; none if they do.
std::optional<std::string> tiling_problem(const std::string& name, const Manifest::Tensor& tensor) {
  int64_t elements = 0;
  for (size_t i = 0; i < tensor.chunks.size(); ++i) {
    const Region& region = tensor.chunks[i].region;
    if (!is_inside(region, tensor.shape)) {
      return fmt::format("a chunk of {} is outside its shape {}", name, tensor.shape.str());
    }
    for (size_t other = 0; other < i; ++other) {
      if (intersects(region, tensor.chunks[other].region)) {
        return fmt::format("two chunks of {} hold {}", name, region.str());
      }
    }
    elements += region.shape.numel();
  }
  if (elements == tensor.shape.numel()) return std::nullopt;
  return fmt::format("the chunks of {} hold {} of its {} elements", name, elements,
                     tensor.shape.numel());
}

Manifest::Tensor tensor_of_json(const json& object) {
  Manifest::Tensor tensor{shape_of(object.at("shape")), dtype_named(object.at("dtype")), {}};
  for (const json& chunk : object.at("chunks")) {
    tensor.chunks.push_back(
        {chunk.at("file").get<std::string>(),
         chunk.at("key").get<std::string>(),
         {chunk.at("offset").get<std::vector<int64_t>>(), shape_of(chunk.at("shape"))},
         crc_of(chunk.at("crc32c"))});
  }
  if (object.contains("hash")) tensor.hash = tensor_hash_of(object["hash"]);
  return tensor;
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

json json_of(const Manifest& manifest) {
  json sections = json::object();
  for (const auto& [section, tensors] : manifest.sections) {
    json& object = sections[section] = json::object();
    for (const auto& [name, tensor] : tensors) {
      object[name] = json_of(tensor);
    }
  }
  json scalars = json::object();
  for (const auto& [owner, values] : manifest.scalars) scalars[owner] = json_of(values);
  json files = json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"crc32c", hex_of(file.crc)}};
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"writer", kWriter},
          {"iteration", manifest.iteration},
          {"consumed_train_samples", manifest.consumed_train_samples},
          {"consumed_valid_samples", manifest.consumed_valid_samples},
          {"sections", sections},
          {"scalars", scalars},
          {"files", files}};
}

// The first such problem of any tensor.
std::optional<std::string> tiling_problem(const Manifest& manifest) {
  for (const auto& [section, tensors] : manifest.sections) {
    for (const auto& [name, tensor] : tensors) {
      if (auto problem = tiling_problem(name, tensor)) return problem;
    }
  }
  return std::nullopt;
}

Manifest manifest_of(const json& document) {
  if (document.at("format") != kFormat) {
    malformed(
        fmt::format("format is {}, expected {}", shortened_json(document.at("format")), kFormat));
  }
  if (document.at("version") != kVersion) {
    throw Unsupported(
        fmt::format("version {} of the checkpoint format is not supported; read it "
                    "with the program that wrote it, or a newer one",
                    shortened_json(document.at("version"))));
  }
  Manifest manifest;
  manifest.iteration = document.at("iteration").get<int64_t>();
  manifest.consumed_train_samples = document.at("consumed_train_samples").get<int64_t>();
  manifest.consumed_valid_samples = document.at("consumed_valid_samples").get<int64_t>();
  for (const auto& [name, file] : document.at("files").items()) {
    if (!is_plain_file_name(name)) malformed(fmt::format("{} is not a file name", name));
    manifest.files[name] = {file.at("bytes").get<int64_t>(), crc_of(file.at("crc32c"))};
  }
  for (const auto& [section, tensors] : document.at("sections").items()) {
    auto& records = manifest.sections[section];
    for (const auto& [name, tensor] : tensors.items()) {
      const Manifest::Tensor& record = records[name] = tensor_of_json(tensor);
      for (const Manifest::Chunk& chunk : record.chunks) {
        if (!manifest.files.contains(chunk.file)) {
          malformed(fmt::format("{} is in {}, which is not among the files", name, chunk.file));
        }
      }
    }
  }
  for (const auto& [owner, values] : document.at("scalars").items()) {
    manifest.scalars[owner] = args_of(values);
  }
  return manifest;
}

std::string sum_of(std::string_view text) {
  return fmt::format("crc32c {} {}\n", hex_of(crc32c(std::as_bytes(std::span(text)))), text.size());
}

}  // namespace

std::string manifest_text(const Manifest& part) { return json_of(part).dump(); }

Manifest parse_manifest_part(std::string_view text) {
  try {
    return manifest_of(parse_json(text, kManifestPart, "the manifest of a rank"));
  } catch (const json::exception& error) {
    throw FormatError(fmt::format("the manifest of a rank: {}", json_problem(error)));
  }
}

void merge(Manifest& manifest, const Manifest& part) {
  for (const auto& [section, tensors] : part.sections) {
    auto& records = manifest.sections[section];
    for (const auto& [name, tensor] : tensors) {
      const auto [known, is_new] = records.try_emplace(name, tensor);
      if (is_new) continue;
      invariant(known->second.shape == tensor.shape && known->second.dtype == tensor.dtype,
                "ranks agree on the shape and dtype of a tensor");
      auto& chunks = known->second.chunks;
      chunks.insert(chunks.end(), tensor.chunks.begin(), tensor.chunks.end());
      auto& hash = known->second.hash;
      if (hash && tensor.hash) {
        *hash += *tensor.hash;
      } else {
        hash.reset();
      }
    }
  }
  manifest.files.insert(part.files.begin(), part.files.end());
}

void write_manifest(const std::filesystem::path& directory, const Manifest& manifest) {
  const std::optional<std::string> problem = tiling_problem(manifest);
  invariant(!problem, problem ? problem->c_str() : "");
  const std::string text = json_of(manifest).dump(1) + "\n";
  write_text_atomically(directory / kManifestSumFile, sum_of(text));
  write_text_atomically(directory / kManifestFile, text);
}

Manifest read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kManifestFile;
  const std::string text = read_text(path);
  if (read_text(directory / kManifestSumFile) != sum_of(text)) {
    throw FormatError(
        fmt::format("{}: does not have the checksum in {}; the checkpoint is damaged, "
                    "load an earlier one (--ckpt-step)",
                    path.string(), kManifestSumFile));
  }
  const json document = parse_json(text, path);
  try {
    Manifest manifest = manifest_of(document);
    if (!manifest.sections.contains(kWeightsSection)) malformed("there is no section weights");
    if (const auto why = tiling_problem(manifest)) malformed(*why);
    return manifest;
  } catch (const json::exception& error) {
    throw FormatError(fmt::format("{}: {}", path.string(), json_problem(error)));
  } catch (const FormatError& error) {
    throw FormatError(fmt::format("{}: {}", path.string(), error.what()));
  } catch (const Unsupported& error) {
    throw Unsupported(fmt::format("{}: {}", path.string(), error.what()));
  }
}

std::string args_text(const ArgMap& args) { return json_of(args).dump(1) + "\n"; }

ArgMap parse_args(std::string_view text, const std::filesystem::path& path) {
  const json document = parse_json(text, path);
  try {
    return args_of(document);
  } catch (const json::exception& error) {
    throw FormatError(fmt::format("{}: {}", path.string(), json_problem(error)));
  }
}

}  // namespace megatron
