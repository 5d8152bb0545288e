#include "megatron/settings/retro_project.h"

#include <fmt/format.h>

#include <algorithm>

#include "annex/retro/data/work_directory.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

class ProjectSettings {
 public:
  ProjectSettings(TrainingArgs& args, std::vector<std::string>& problems)
      : args_(args), problems_(problems) {}

  template <class T>
  void take(const char* dest, T& field, const T& value) {
    if (args_.given.contains(dest) && field != value) {
      std::string flag(dest);
      std::ranges::replace(flag, '_', '-');
      problems_.push_back(
          fmt::format("--{} {} differs from --retro-project-dir {}, which has {}; remove it", flag,
                      field, args_.data.retro_project_dir, value));
      return;
    }
    field = value;
    args_.given.insert(dest);
  }

 private:
  TrainingArgs& args_;
  std::vector<std::string>& problems_;
};

void take_all(const RetroProject& project, TrainingArgs& args, std::vector<std::string>& problems) {
  const RetroSettings& settings = project.settings;
  DataConfig& data = args.data;
  ProjectSettings found(args, problems);
  found.take("seq_length", args.transformer.seq_length, settings.seq_length);
  found.take("seed", args.training.seed, settings.seed);
  found.take("train_samples", args.training.train_samples, project.train_samples);
  found.take("global_batch_size", args.training.global_batch_size, project.global_batch_size);
  found.take("eval_interval", args.training.eval_interval, project.eval_interval);
  found.take("eval_iters", args.training.eval_iters, project.eval_iters);
  found.take("tokenizer_type", args.tokenizer.tokenizer_type, project.tokenizer.tokenizer_type);
  const auto take_file = [&](const char* dest, std::string& field, const std::string& value) {
    if (!value.empty() && !args.given.contains(dest)) found.take(dest, field, value);
  };
  take_file("vocab_file", args.tokenizer.vocab_file, project.tokenizer.vocab_file);
  take_file("merge_file", args.tokenizer.merge_file, project.tokenizer.merge_file);
  take_file("tokenizer_model", args.tokenizer.tokenizer_model, project.tokenizer.tokenizer_model);
  take_file("data_cache_path", data.data_cache_path, project.data_cache_path);
  if (!args.given.contains("max_position_embeddings")) {
    found.take("max_position_embeddings", args.transformer.max_position_embeddings,
               settings.seq_length);
  }
  if (!args.given.contains("data_path")) {
    data.data_path = settings.data_path;
    args.given.insert("data_path");
  }
  if (args.transformer.retro.add_retriever && !args.given.contains("retro_neighbor_dirs")) {
    data.retro_neighbor_dirs = project.neighbor_dirs;
    args.given.insert("retro_neighbor_dirs");
  }
}

}  // namespace

void apply_retro_project(TrainingArgs& args, std::vector<std::string>& problems) {
  const std::string& directory = args.data.retro_project_dir;
  if (directory.empty()) return;
  if (!args.data.retro_workdir.empty() && args.data.retro_workdir != directory) {
    problems.emplace_back(
        "--retro-project-dir and --retro-workdir name one directory each; remove one of them");
    return;
  }
  try {
    take_all(read_retro_project(directory), args, problems);
    args.data.retro_workdir = directory;
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

}  // namespace megatron
