#include "megatron/core/parts.h"
#include "megatron/training/tensorboard.h"
#include "megatron/training/wandb_run.h"

// Builds without MG_PROTOBUF. Flags that need it are refused when they are resolved.
namespace megatron {
namespace {

[[noreturn]] std::filesystem::path refused(const char* file) {
  refuse_missing(file, "MG_PROTOBUF");
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path&)
    : file_(refused("a file of TensorBoard"), "") {}
void TensorBoardWriter::add_scalar(std::string_view, double, int64_t) {}
void TensorBoardWriter::add_hyperparameters(const ArgMap&) {}
void TensorBoardWriter::add_text(std::string_view, std::string_view, int64_t) {}

WandbRun::WandbRun(const std::filesystem::path&, const Description&)
    : file_(refused("a file of Weights & Biases"), "") {}
WandbRun::~WandbRun() = default;
void WandbRun::go_live(std::unique_ptr<RunService>, const LiveRun::Pace&) {}
void WandbRun::write(int64_t, const NamedValues&) {}

}  // namespace megatron
