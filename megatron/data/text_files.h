#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// How to find the texts in a file.
struct TextFileOptions {
  std::string column = "text";   // of csv, json and parquet; without it the first column
  bool keeps_linebreaks = true;  // the lines of a .txt end with \n
};

// The files that the words name, in that order; a folder stands for its files, sorted by name.
// Knows .txt, .csv, .json and .jsonl, also packed (.gz, .xz), and .parquet. Throws ConfigError for
// other files, naming the remedy; IoError.
std::vector<std::filesystem::path> text_files(std::span<const std::string> words);

// The files of a data set's folder by split, each sorted by name.
struct DatasetFiles {
  std::vector<std::filesystem::path> train;
  std::vector<std::filesystem::path> validation;
};
// By the beginnings of their names, as Hugging Face's data sets have them: train, valid or dev,
// test, which is left out. Without a train split, files of other names are for training. Throws
// ConfigError if there are none.
DatasetFiles dataset_files(const std::filesystem::path& folder);

// Gives the texts of such a file to `take`, in order: the lines of a .txt, a column of a .csv with
// a header, a key of the objects of a .json or .jsonl (one object a line, or one list), a column of
// a .parquet. Throws IoError, ConfigError and FormatError, with the file and the line or row.
void read_texts(const std::filesystem::path& file, const TextFileOptions& options,
                const std::function<void(std::string_view text)>& take);

}  // namespace megatron
