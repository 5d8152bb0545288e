#include "annex/retro/data/work_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/md5.h"
#include "megatron/data/python_json.h"

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

Json parsed(const std::filesystem::path& path) {
  return parse_ordered_json(read_text(path), kJsonLine, path.string());
}

template <class T>
T member(const Json& object, const char* key, const std::filesystem::path& path) {
  const auto found = object.find(key);
  if (found != object.end()) {
    try {
      return found->get<T>();
    } catch (const nlohmann::json::exception&) {  // the message below says more
    }
  }
  throw FormatError(
      fmt::format("{}: \"{}\" is missing or of another type; run megatron retro-preprocess again",
                  path.string(), key));
}

std::string_view name_of(ChunkPart part) {
  switch (part) {
    case ChunkPart::kTrain:
      return "train";
    case ChunkPart::kSampled:
      return "sampled";
    case ChunkPart::kValid:
      return "valid";
  }
  throw InternalError("ChunkPart out of range");
}

// Parses the name "<begin>-<end>.hdf5"; false for other names.
bool read_name(Block& block) {
  const std::string name = block.path.filename().string();
  if (!name.ends_with(".hdf5")) return false;
  const char* const end = name.data() + name.size();
  const auto [dash, error] = std::from_chars(name.data(), end, block.begin);
  if (error != std::errc() || dash == end || *dash != '-') return false;
  const auto [dot, second_error] = std::from_chars(dash + 1, end, block.end);
  return second_error == std::errc() && std::string_view(dot, end) == ".hdf5";
}

}  // namespace

std::filesystem::path retro_args_file(const std::filesystem::path& directory) {
  return directory / "args.json";
}

namespace {

std::filesystem::path project_file(const std::filesystem::path& directory) {
  return directory / "config.json";
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// A directory of a later version, whose names are relative.
bool is_project(const std::filesystem::path& directory) {
  return !is_there(retro_args_file(directory)) && is_there(project_file(directory));
}

std::string in_project(const std::filesystem::path& directory, const std::string& name) {
  return is_project(directory) ? (directory / "data" / name).string() : name;
}

}  // namespace

RetroSettings read_retro_settings(const std::filesystem::path& directory) {
  const std::filesystem::path path =
      is_project(directory) ? project_file(directory) : retro_args_file(directory);
  if (!is_there(path)) {
    throw ConfigError(fmt::format(
        "--retro-workdir {}: has no args.json; name the directory that megatron retro-preprocess "
        "filled",
        directory.string()));
  }
  const Json args = parsed(path);
  RetroSettings settings = {
      .chunk_length = member<int64_t>(args, "retro_gpt_chunk_length", path),
      .seq_length = member<int64_t>(args, "retro_gpt_seq_length", path),
      .seed = member<int64_t>(args, "retro_gpt_seed", path),
      .split = member<std::string>(args, "retro_gpt_split", path),
      .data_path = member<std::vector<std::string>>(args, "retro_gpt_data_path", path)};
  const bool has_weights = settings.data_path.size() % 2 == 0;
  for (size_t i = has_weights ? 1 : 0; i < settings.data_path.size(); i += 2) {
    settings.data_path[i] = in_project(directory, settings.data_path[i]);
  }
  return settings;
}

RetroProject read_retro_project(const std::filesystem::path& directory) {
  const std::filesystem::path path = project_file(directory);
  if (!is_there(path)) {
    throw ConfigError(fmt::format(
        "--retro-project-dir {}: has no config.json; name the directory that Megatron-LM's "
        "tools/retro/preprocess_data.py filled, or give --retro-workdir",
        directory.string()));
  }
  const Json config = parsed(path);
  const auto text = [&](const char* key) {
    const auto found = config.find(key);
    return found == config.end() || found->is_null() ? std::string()
                                                     : member<std::string>(config, key, path);
  };
  const auto file = [&](const char* key) {
    const std::string name = text(key);
    return name.empty() ? name : (directory / name).string();
  };
  RetroProject project = {
      .settings = read_retro_settings(directory),
      .train_samples = member<int64_t>(config, "retro_gpt_train_samples", path),
      .global_batch_size = member<int64_t>(config, "retro_gpt_global_batch_size", path),
      .eval_interval = member<int64_t>(config, "retro_gpt_eval_interval", path),
      .eval_iters = member<int64_t>(config, "retro_gpt_eval_iters", path),
      .tokenizer = {.tokenizer_type = member<std::string>(config, "retro_gpt_tokenizer_type", path),
                    .vocab_file = file("retro_gpt_vocab_file"),
                    .merge_file = file("retro_gpt_merge_file"),
                    .tokenizer_model = file("retro_gpt_tokenizer_model")},
      .data_cache_path = text("retro_gpt_data_cache_path"),
      .neighbor_dirs = {}};
  const auto neighbors = config.find("retro_neighbor_dirs");
  if (neighbors == config.end()) return project;
  for (const auto& [split, name] : neighbors->items()) {
    if (!name.is_string()) continue;
    project.neighbor_dirs.push_back(
        fmt::format("{}={}", split, (directory / "query" / name.get<std::string>()).string()));
  }
  return project;
}

std::filesystem::path chunk_sources_file(const std::filesystem::path& directory) {
  return directory / "db" / "indexed_dataset_infos.json";
}

std::vector<ChunkSource> read_chunk_sources(const std::filesystem::path& directory) {
  const std::filesystem::path path = chunk_sources_file(directory);
  std::vector<ChunkSource> sources;
  for (const Json& info : parsed(path)) {
    const auto prefix = member<std::string>(info, "prefix", path);
    const bool has_name = info.contains("name");  // later versions name it by its prefix
    const auto name = has_name ? member<std::string>(info, "name", path) : prefix;
    sources.push_back(
        {.ratio = member<double>(info, "ratio", path),
         .prefix = in_project(directory, prefix),
         .name = name,
         .blocks = has_name ? std::filesystem::path(member<std::string>(info, "db_dir", path))
                            : individual_chunks(directory, name),
         .documents = member<int64_t>(info, "n_docs", path),
         .train_documents = member<int64_t>(info, "n_docs_train", path),
         .chunks = member<int64_t>(info, "n_chunks", path),
         .train_chunks = member<int64_t>(info, "n_chunks_train", path),
         .invalid_chunks = member<int64_t>(info, "n_chunks_invalid", path),
         .sampled_chunks = member<int64_t>(info, "n_chunks_sampled", path),
         .digest = info.contains("data_md5") ? member<std::string>(info, "data_md5", path) : ""});
  }
  return sources;
}

void write_chunk_sources(const std::filesystem::path& directory,
                         const std::vector<ChunkSource>& sources) {
  Json infos = Json::array();
  for (const ChunkSource& source : sources) {
    infos.push_back({{"ratio", source.ratio},
                     {"prefix", source.prefix},
                     {"path", source.prefix + ".bin"},
                     {"name", source.name},
                     {"db_dir", source.blocks.string()},
                     {"n_docs", source.documents},
                     {"n_docs_train", source.train_documents},
                     {"n_chunks", source.chunks},
                     {"n_chunks_train", source.train_chunks},
                     {"n_chunks_invalid", source.invalid_chunks},
                     {"n_chunks_sampled", source.sampled_chunks}});
    if (!source.digest.empty()) infos.back()["data_md5"] = source.digest;
  }
  write_text_atomically(chunk_sources_file(directory), python_json(infos));
}

std::string data_digest(const std::string& prefix) {
  constexpr size_t kSampled = size_t{16} << 20;  // bytes at each end
  std::string digests;
  for (const std::filesystem::path& path : {index_file(prefix), tokens_file(prefix)}) {
    const MappedFile file(path);
    const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                                 file.bytes().size());
    const size_t end = std::max(bytes.size(), kSampled) - kSampled;
    digests += fmt::format("{} {} {} ", bytes.size(), md5_hex(bytes.substr(0, kSampled)),
                           md5_hex(bytes.substr(end)));
  }
  return md5_hex(digests);
}

void expect_same_data(const ChunkSource& source, const std::filesystem::path& directory) {
  if (source.digest.empty() || source.digest == data_digest(source.prefix)) return;
  throw ConfigError(fmt::format(
      "{}: the data have changed since their chunks were cut for --retro-workdir {}, so chunks, "
      "index and neighbours are of other texts; give another --retro-workdir, or delete its db, "
      "index and query",
      source.prefix, directory.string()));
}

std::filesystem::path individual_chunks(const std::filesystem::path& directory,
                                        std::string_view name) {
  return directory / "db" / "individual" / name;
}

std::filesystem::path merged_chunks_file(const std::filesystem::path& directory, ChunkPart part) {
  return directory / "db" / "merged" / fmt::format("{}.hdf5", name_of(part));
}

std::filesystem::path neighbor_directory(const std::filesystem::path& directory, Split split,
                                         std::string_view digest) {
  return directory / "query" / fmt::format("{}_{}", split_name(split), digest);
}

std::vector<Block> blocks_of(int64_t count, int64_t block_size,
                             const std::filesystem::path& directory) {
  if (count == 0) return {};
  // Compat: one digit more than Megatron-LM needs, and its rounding of logarithms.
  const double magnitude = std::log(static_cast<double>(count)) / std::log(10.0);
  const int digits = static_cast<int>(std::ceil(magnitude) + 1);
  std::vector<Block> blocks;
  for (int64_t begin = 0; begin < count; begin += block_size) {
    const int64_t end = std::min(begin + block_size, count);
    blocks.push_back(
        {begin, end, directory / fmt::format("{:0{}}-{:0{}}.hdf5", begin, digits, end, digits)});
  }
  return blocks;
}

std::vector<Block> find_blocks(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<Block> blocks;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    Block block{0, 0, entry.path()};
    if (read_name(block)) blocks.push_back(std::move(block));
  }
  if (error)
    throw IoError(fmt::format("{}: cannot be read: {}", directory.string(), error.message()));
  std::ranges::sort(blocks, {}, &Block::begin);
  int64_t end = 0;
  for (const Block& block : blocks) {
    if (block.begin != end || block.end <= block.begin) {
      throw FormatError(fmt::format(
          "{}: the block from {} on is missing, as the next file is {}; run megatron "
          "retro-preprocess again, which makes missing blocks, or delete files of other runs",
          directory.string(), end, block.path.filename().string()));
    }
    end = block.end;
  }
  return blocks;
}

}  // namespace megatron
