#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// A file that a tokenizer reads, and the name of its copy.
struct TokenizerFile {
  std::filesystem::path path;  // absolute
  std::string name;            // "vocab.json", "additional_chat_templates/rag.jinja"
};

// The files that the tokenizer of a config reads; from a Hugging Face folder, the existing ones.
std::vector<TokenizerFile> tokenizer_files(const TokenizerConfig& config);

// The files of a Hugging Face or GPT-2 tokenizer in its folder, including chat templates; names are
// relative to the folder.
std::vector<TokenizerFile> files_of_tokenizer_folder(const std::filesystem::path& folder);

// The config with the paths of existing files made absolute and normalized: valid from other
// directories, and descriptions of data do not depend on the working directory.
TokenizerConfig with_absolute_paths(const TokenizerConfig& config);

// Larger files are not copied into checkpoints.
inline constexpr int64_t kMaxCopiedTokenizerFile = int64_t{16} << 20;

// Saves to `folder` all that make_tokenizer needs: copies of the files and, in
// tokenizer_flags.json, the flags, whose paths are relative to the folder. If a file is larger than
// `max_file_bytes` none is copied, and the flags have absolute paths. The folder is replaced
// atomically. REQUIRES: no other program saves to it. Throws IoError.
void save_tokenizer(const TokenizerConfig& config, const std::filesystem::path& folder,
                    int64_t max_file_bytes = kMaxCopiedTokenizerFile);

// The config for a folder written by save_tokenizer, wherever it is now; nothing if there is no
// such folder. Throws FormatError if its tokenizer_flags.json is damaged, or if a file has changed
// since (core/checksums.h).
std::optional<TokenizerConfig> saved_tokenizer(const std::filesystem::path& folder);

// The tokenizer folder of a run with --save, beside the checkpoints.
std::filesystem::path tokenizer_folder(const std::filesystem::path& save);
// The tokenizer saved inside the folder of a checkpoint or beside it; nothing if there is none.
std::optional<TokenizerConfig> tokenizer_of_checkpoint(const std::filesystem::path& checkpoint);

// The tokenizer in the folder of a Hugging Face model; nothing if it has none of the supported
// files: vocab.json with merges.txt, tokenizer.json, vocab.txt, tokenizer.model or spiece.model.
// Checks a list of checksums beside them: throws FormatError for changed files, only warns for
// settings.
std::optional<TokenizerConfig> tokenizer_of_model(const std::filesystem::path& folder);

}  // namespace megatron
