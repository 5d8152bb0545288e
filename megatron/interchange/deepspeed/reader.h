#pragma once

#include <filesystem>

#include "megatron/checkpoint/contents.h"

namespace megatron {

// The weights of a GPT that BigScience's Megatron-DeepSpeed saved: a directory global_stepN with
// layer_LL-model_TT-model_states.pt for each pipeline layer and tensor-parallel rank, and
// mp_rank_00_model_states.pt for everything else. Tensors that every rank has drift apart there;
// their mean is read, as BLOOM's converter does. The optimizer's state (ZeRO) is not read.
//
// Or the universal checkpoint that DeepSpeed's ds_to_universal makes of such a directory, in which
// zero/<parameter> has the whole weight and both moments of Adam: a run can go on with it.
//
// Throws IoError; FormatError for files that do not fit each other; Unsupported for tensors that no
// GPT of this program has.
CheckpointContents open_deepspeed_checkpoint(const std::filesystem::path& directory);

}  // namespace megatron
