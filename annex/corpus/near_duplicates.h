#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "annex/corpus/lines.h"
#include "annex/corpus/shingles.h"

namespace megatron::corpus {

// A file of JSON lines with "text" and the member that identifies a document.
struct KeyedFile {
  std::filesystem::path file;
  std::string key;
};

// Names are the flags of tools/openwebtext/find_duplicates.py without the dashes.
struct NearDuplicatesConfig {
  std::vector<KeyedFile> inputs = {};
  std::vector<std::filesystem::path> load_fingerprints = {};
  std::filesystem::path save_fingerprints = {};
  std::filesystem::path output = {};  // empty: only save fingerprints
  Jaccard jaccard = Jaccard::kUnion;
  int64_t heuristic_iter = 1;  // -1: all pairs of a bucket
  int64_t num_bands = 10;
  int64_t num_seeds = 100;  // a multiple of num_bands
  int64_t seed = 1234;
  bool texts_on_disk = false;  // beside the output
};

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const NearDuplicatesConfig& config);

struct NearDuplicatesCounts {
  int64_t documents = 0;
  int64_t bad_lines = 0;
  int64_t repeated_ids = 0;  // documents that were left out because an earlier one has their id
  int64_t buckets = 0;       // with more than one document
  int64_t compared = 0;      // pairs, in all buckets
  int64_t pairs = 0;         // similar ones
};

// Finds similar documents by locality-sensitive hashing (Leskovec, Rajaraman and Ullman, Mining of
// Massive Datasets, ch. 3). Documents that agree in a band of their fingerprints are in one bucket.
// In a bucket a random document is the main one: all others whose similarity with it is above 0.5
// are recorded and leave the bucket, and then it leaves, too; this is done heuristic_iter times.
// With one iteration a pair of similar documents is only found if one of them is the main one.
//
// The output has a line {"<main id>": [{"<other id>": similarity}, ...]} for each main document
// with similar ones, in the order of bands, buckets and iterations; a pair may appear once for each
// band. Buckets are ordered by their first documents. The result depends on the seed, not on the
// number of threads. Memory: see Documents, and 16 bytes for each document of a band.
//
// Compat: tools/openwebtext/find_duplicates.py of Megatron-LM core_r0.5.0. Fingerprints are files
// of our own; n-grams of fingerprints are those of bytes; the random main documents are our own
// draws; a repeated id is an error there or replaces the text.
NearDuplicatesCounts find_near_duplicates(const NearDuplicatesConfig& config,
                                          const RunOptions& options);

}  // namespace megatron::corpus
