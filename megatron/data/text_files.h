#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// How to read texts from a file.
struct TextFileOptions {
  std::string column = "text";   // of csv, json and parquet; the first column if there is none
  bool keeps_linebreaks = true;  // the lines of a .txt end with \n
};

// Expands the names of files and folders, in order; a folder stands for its files, sorted by name.
// Supports .txt, .csv, .json and .jsonl, also compressed (.gz, .xz), and .parquet. Throws
// ConfigError, which names the remedy, for other files; IoError.
std::vector<std::filesystem::path> text_files(std::span<const std::string> words);

// The files of a data set's folder by split, sorted by name.
struct DatasetFiles {
  std::vector<std::filesystem::path> train;
  std::vector<std::filesystem::path> validation;
};
// Assigns files by the prefixes of their names, as in Hugging Face's data sets: train, valid or
// dev, and test, which is left out. Without a train split, files of other names are for training.
// Throws ConfigError if there are none.
DatasetFiles dataset_files(const std::filesystem::path& folder);

// Calls `take` for each text of such a file, in order: the lines of a .txt, a column of a .csv with
// a header, a key of the objects of a .json or .jsonl (one object a line, or one list), a column of
// a .parquet. Throws IoError, ConfigError and FormatError, with the file and the line or row.
void read_texts(const std::filesystem::path& file, const TextFileOptions& options,
                const std::function<void(std::string_view text)>& take);

}  // namespace megatron
