#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_retro_flags(FlagTable& flags, TrainingArgs& args) {
  RetroConfig& c = args.transformer.retro;
  DataConfig& data = args.data;

  flags.group("retro");
  flags.add_optional("--retro-workdir", data.retro_workdir, "Directory of Retro's preprocessing.")
      .only_for({"GPT"});
  flags
      .add_optional("--retro-project-dir", data.retro_project_dir,
                    "Retro project directory of later Megatron-LM versions, which also specifies "
                    "data, samples, evaluation, tokenizer and neighbours.")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_switch("--retro-add-retriever", c.add_retriever,
                  "Train a Retro: some layers attend to neighbours retrieved for the chunks of "
                  "each sample. For pretrain-retro.")
      .architecture()
      .only_for({"GPT"});
  flags
      .add("--retro-layer-numbers", c.layer_numbers,
           "Layers that attend to neighbours, from 1; every third one from layer 6 on, or from "
           "layer 9 on with more than 15 layers, if not given.")
      .architecture()
      .becomes("layer_numbers")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_optional("--retro-cyclic-train-iters", args.legacy.retro_cyclic_train_iters,
                    "With --dataloader-type cyclic: --train-iters.")
      .becomes("train_iters")
      .only_for({"GPT"});
  flags.add("--retro-encoder-layers", c.encoder_layers, "Layers of the neighbours' encoder.")
      .architecture()
      .becomes("encoder_layers")
      .only_for({"GPT"});
  flags
      .add("--retro-encoder-hidden-dropout", c.encoder_hidden_dropout,
           "Hidden dropout of the neighbours' encoder.")
      .becomes("encoder_hidden_dropout")
      .only_for({"GPT"});
  flags
      .add("--retro-encoder-attention-dropout", c.encoder_attention_dropout,
           "Attention dropout of the neighbours' encoder.")
      .becomes("encoder_attention_dropout")
      .only_for({"GPT"});
  flags
      .add_choice("--retro-encoder-residual", c.encoder_residual,
                  {{"pre", RetroResidual::kPre}, {"post", RetroResidual::kPost}},
                  "Residual of the cross-attention in the neighbours' encoder: pre is the residual "
                  "stream, post its norm, as in Megatron Core.")
      .from_checkpoint()
      .becomes("encoder_residual")
      .only_for({"GPT"})
      .is_listed = false;
  flags.add("--retro-num-neighbors", c.num_neighbors, "Neighbours per chunk.")
      .becomes("num_neighbors")
      .only_for({"GPT"});
  flags
      .add("--retro-num-retrieved-chunks", c.num_retrieved_chunks,
           "Chunks per neighbour: the retrieved chunk and its continuation.")
      .becomes("num_retrieved_chunks")
      .only_for({"GPT"});
  flags
      .add("--retro-gpt-chunk-length", c.chunk_length,
           "Tokens of a chunk; those of --retro-workdir if not given.")
      .from_checkpoint()
      .becomes("chunk_length")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add("--retro-attention-gate", c.attention_gate,
           "Scale of the cross-attention to retrieved neighbours; 0 disables it.")
      .prints(int64_t{1})
      .becomes("attention_gate")
      .only_for({"GPT"});
  flags
      .add_switch("--retro-fit-copy-mlp-norm", c.fit_copy_mlp_norm,
                  "With --finetune from a GPT: initialize the norms before cross-attention from "
                  "those before the MLP.")
      .becomes("fit_copy_mlp_norm")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_optional("--retro-neighbor-dirs", data.retro_neighbor_dirs,
                    "Directories of neighbours, instead of those of --retro-workdir: train=DIR "
                    "valid=DIR test=DIR.")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_choice("--retro-pad-missing", data.retro_pad_missing,
                  {{"wrap", MissingNeighbor::kLastChunk}, {"eod", MissingNeighbor::kEndOfDocument}},
                  "Replacement of missing neighbours: the last chunk followed by the first (wrap), "
                  "or end-of-document tokens (eod).")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_off("--retro-no-verify-neighbor-count -> retro_verify_neighbor_count",
               data.retro_verify_neighbor_count,
               "Accept neighbours of a different number of samples; sample indices are taken "
               "modulo that number.")
      .only_for({"GPT"});
  flags
      .add_entry("--retro-return-doc-ids", FlagType::kSwitch, args.other, false,
                 "Add document ids to samples.")
      .no_effect("only the preprocessing reads the ids of documents, always");
}

}  // namespace megatron
