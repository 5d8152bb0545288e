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
                    "The same of Megatron-LM's later versions, which names data, samples, "
                    "evaluation, tokenizer and neighbours, too.")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_switch("--retro-add-retriever", c.add_retriever,
                  "Train a Retro: some layers attend to neighbours, which were retrieved for the "
                  "chunks of each sample. For pretrain-retro.")
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
                  "What cross-attention of the neighbours' encoder is added to: the residual "
                  "stream, or its norm as in Megatron Core.")
      .from_checkpoint()
      .becomes("encoder_residual")
      .only_for({"GPT"})
      .is_listed = false;
  flags.add("--retro-num-neighbors", c.num_neighbors, "Neighbours of a chunk.")
      .becomes("num_neighbors")
      .only_for({"GPT"});
  flags
      .add("--retro-num-retrieved-chunks", c.num_retrieved_chunks,
           "Chunks of a neighbour: the one that was found, and what follows it.")
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
           "Factor of what is read from neighbours; 0: they are not looked at.")
      .prints(int64_t{1})
      .becomes("attention_gate")
      .only_for({"GPT"});
  flags
      .add_switch("--retro-fit-copy-mlp-norm", c.fit_copy_mlp_norm,
                  "With --finetune from a GPT: norms before cross-attention begin as copies of "
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
                  "What stands for a neighbour that was not found: the last chunk and the first, "
                  "or ends of documents.")
      .only_for({"GPT"})
      .is_listed = false;
  flags
      .add_off("--retro-no-verify-neighbor-count -> retro_verify_neighbor_count",
               data.retro_verify_neighbor_count,
               "Accept neighbours of fewer or more samples; samples count modulo theirs.")
      .only_for({"GPT"});
  flags
      .add_entry("--retro-return-doc-ids", FlagType::kSwitch, args.other, false,
                 "Add document ids to samples.")
      .no_effect("only the preprocessing reads the ids of documents, always");
}

}  // namespace megatron
