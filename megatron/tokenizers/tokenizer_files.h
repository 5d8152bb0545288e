#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// A file that a tokenizer reads, and what its copy is called.
struct TokenizerFile {
  std::filesystem::path path;  // absolute
  std::string name;            // "vocab.json", "additional_chat_templates/rag.jinja"
};

// The files that the tokenizer of a config reads; of a Hugging Face folder those that are there.
std::vector<TokenizerFile> tokenizer_files(const TokenizerConfig& config);

// The files in the folder of a Hugging Face or GPT-2 tokenizer that belong to it, chat templates
// too; names are relative to the folder.
std::vector<TokenizerFile> files_of_tokenizer_folder(const std::filesystem::path& folder);

// The config with the paths of files that are there made absolute and without detours: other
// directories find them, and descriptions of data do not depend on the directory of a run.
TokenizerConfig with_absolute_paths(const TokenizerConfig& config);

// Larger files are not copied into checkpoints.
inline constexpr int64_t kMaxCopiedTokenizerFile = int64_t{16} << 20;

// Makes `folder` hold what make_tokenizer needs: copies of the files and, in tokenizer_flags.json,
// the flags, whose paths are relative to the folder. If a file is larger than `max_file_bytes` none
// is copied, and the flags hold absolute paths. Readers see the old folder or the whole new one.
// REQUIRES: no other program saves to it. Throws IoError.
void save_tokenizer(const TokenizerConfig& config, const std::filesystem::path& folder,
                    int64_t max_file_bytes = kMaxCopiedTokenizerFile);

// The config that opens what save_tokenizer has written, wherever the folder is now; nothing if
// there is no such folder. Throws FormatError if its tokenizer_flags.json is broken, or if a file
// is not as it was saved (core/checksums.h).
std::optional<TokenizerConfig> saved_tokenizer(const std::filesystem::path& folder);

// Where a run with --save keeps its tokenizer, beside the checkpoints.
std::filesystem::path tokenizer_folder(const std::filesystem::path& save);
// The tokenizer that was saved inside the folder of one checkpoint or beside it; nothing if there
// is none.
std::optional<TokenizerConfig> tokenizer_of_checkpoint(const std::filesystem::path& checkpoint);

// The tokenizer in the folder of a Hugging Face model; nothing if none of its files is known:
// vocab.json with merges.txt, tokenizer.json, vocab.txt, tokenizer.model or spiece.model. Throws
// FormatError if a list of checksums beside them has others, and warns of settings.
std::optional<TokenizerConfig> tokenizer_of_model(const std::filesystem::path& folder);

}  // namespace megatron
