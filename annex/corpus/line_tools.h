#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "annex/corpus/lines.h"

// Small tools over files of JSON lines. A document takes no memory beyond its line.
namespace megatron::corpus {

// Joins the files *.json of a folder, by name, into one file; lines that are no JSON objects are
// left out. The lines keep their bytes. The output may lie in the folder: it is not an input.
// Throws ConfigError if the folder has no such file.
// Compat: tools/openwebtext/merge_jsons.py of Megatron-LM core_r0.5.0, which stops at a bad line
// and takes the files in the order of the file system.
LineCounts merge_json_files(const std::filesystem::path& folder,
                            const std::filesystem::path& output, const RunOptions& options);

// Adds the member "adlr_id": "<prefix>-0000000001" and so on, counting the written documents.
// Compat: tools/openwebtext/add_id.py.
LineCounts add_ids(const std::filesystem::path& input, const std::filesystem::path& output,
                   const std::string& prefix, const RunOptions& options);

}  // namespace megatron::corpus
