#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// A part of the sequence of all heads against the whole sequence of a part of the heads
// (Jacobs et al. 2023, arXiv:2309.14509). Each does two all-to-alls, one for each chunk of a rank.
//
//   function             forward                                backward
//   sequence_to_heads    x [s/cp, b, w] -> y [s, b, w/cp]       heads_to_sequence
//   heads_to_sequence    x [s, b, w/cp] -> y [s/cp, b, w]       sequence_to_heads
//
// Rank i has part i of the last axis. A group of one changes nothing. REQUIRES: cp divides w.
Variable sequence_to_heads(const Variable& x, const ContextParallel& cp);
Variable heads_to_sequence(const Variable& x, const ContextParallel& cp);

}  // namespace megatron
