#pragma once

#include <cstdint>
#include <span>

#include "megatron/checkpoint/contents.h"
#include "megatron/nn/module.h"
#include "megatron/transformer/config.h"

// Experts made of the MLPs of a dense model (He et al. 2024, arXiv:2410.07524; Megatron Core's
// --moe-use-upcycling). With a granularity g an MLP is cut into g experts of 1/g of its width, and
// copies of these g follow each other; weights are scaled so that the first output is the MLP's.
namespace megatron {

// Has the checkpoint no experts, though layers of the model have?
bool is_dense_source(const CheckpointContents& contents, const TransformerConfig& config);

// Replaces the weights of MLPs by those of experts, and drops the optimizer's state. Throws
// FormatError if an MLP has not granularity times the width of an expert.
void upcycle(CheckpointContents& contents, const TransformerConfig& config, int64_t granularity);

// True for tensors that the dense model has not, which keep their first values.
bool is_new_of_experts(std::string_view name);

// Gives the g experts of each copy of an MLP one row of the router's weight: they are chosen
// together.
void share_router_rows(std::span<const Module* const> chunks, int64_t granularity);

}  // namespace megatron
