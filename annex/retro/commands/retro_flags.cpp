#include "annex/retro/commands/retro_flags.h"

namespace megatron::cli {
namespace {

using retro::EmbedderType;
using retro::IndexType;

void add_samples(FlagTable& table, RetroFlags& flags) {
  retro::RetroConfig& c = flags.config;
  table.group("samples and database");
  table.add("--retro-gpt-data-path", c.retro_gpt_data_path,
            "Weights and prefixes of the datasets, whose chunks are also retrieved.");
  table.add("--retro-gpt-split", c.retro_gpt_split,
            "Proportions of train, valid and test; chunks of train are retrieved.");
  table.add("--retro-gpt-seed", c.retro_gpt_seed, "Seed of the order of the samples.");
  table.add_optional("--retro-gpt-seq-length", c.retro_gpt_seq_length, "Tokens of a sample.");
  table.add("--retro-gpt-chunk-length", c.retro_gpt_chunk_length, "Tokens of a chunk.");
  table.add_optional("--retro-gpt-global-batch-size", c.retro_gpt_global_batch_size,
                     "Samples of an iteration of the training.");
  table.add_optional("--retro-gpt-eval-interval", c.retro_gpt_eval_interval,
                     "Iterations between its evaluations.");
  table.add_optional("--retro-gpt-eval-iters", c.retro_gpt_eval_iters,
                     "Iterations of an evaluation.");
  table.add_optional("--retro-gpt-tokenizer-type", c.gpt_tokenizer.tokenizer_type,
                     "GPT2BPETokenizer or GPTSentencePieceTokenizer.");
  table.add_optional("--retro-gpt-vocab-file", c.gpt_tokenizer.vocab_file, "Its vocabulary.");
  table.add_optional("--retro-gpt-merge-file", c.gpt_tokenizer.merge_file, "Its merges.");
  table.add_optional("--retro-gpt-tokenizer-model", c.gpt_tokenizer.tokenizer_model, "Its model.");
  table.add_entry("--retro-return-doc-ids", FlagType::kSwitch, flags.without_effect, false,
                  "Not needed: the documents of a sample are always known here.");
}

void add_embedder(FlagTable& table, RetroFlags& flags) {
  retro::RetroConfig& c = flags.config;
  table.group("embedding of chunks");
  table.add_choice(
      "--bert-embedder-type", c.bert_embedder_type,
      {{"megatron", EmbedderType::kMegatron}, {"hashed", EmbedderType::kHashed}},
      "megatron: the BERT of --load, of any format; hashed: counts of words, without a model.");
  table.add_optional("--retro-bert-tokenizer-type", c.bert_tokenizer.tokenizer_type,
                     "BertWordPieceLowerCase or BertWordPieceCase.");
  table.add_optional("--retro-bert-vocab-file", c.bert_tokenizer.vocab_file, "Its vocabulary.");
  table.add("--retro-bert-batch-size", c.retro_bert_batch_size, "Texts of one forward pass.");
  table.add("--retro-bert-max-chunk-length", c.retro_bert_max_chunk_length,
            "Most tokens of a text, with [CLS] and [SEP].");
  table.add_entry("--output-bert-embeddings", FlagType::kSwitch, flags.without_effect, false,
                  "Not needed: BERT gives embeddings in this command.");
}

void add_index(FlagTable& table, retro::RetroConfig& c) {
  table.group("index");
  table.add("--retro-index-nfeats,-f", c.retro_index_nfeats,
            "Numbers of an embedding; the hidden size of BERT.");
  table.add_choice("--retro-index-type", c.retro_index_type,
                   {{"faiss-par-add", IndexType::kParallelAdd}, {"faiss-base", IndexType::kBase}},
                   "Whether all ranks add to the index, or one; the result is the same.");
  table.add_optional("--retro-index-str", c.retro_index_str,
                     "FAISS's description of the index: IVF64,Flat or "
                     "OPQ32_64,IVF65536_HNSW8,PQ32.");
  table.add_optional("--retro-index-ntrain", c.retro_index_ntrain, "Chunks that train the index.");
  table.add("--retro-index-train-load-fraction", c.retro_index_train_load_fraction,
            "Part of these that is loaded.");
  table.add("--retro-index-add-load-fraction", c.retro_index_add_load_fraction,
            "Part of the chunks that is added.");
  table.add_off(
      "--retro-index-no-delete-training-embeddings -> "
      "retro_index_delete_training_embeddings",
      c.retro_index_delete_training_embeddings, "Keep the embeddings of the training.");
  table.add_off("--retro-index-no-delete-added-codes -> retro_index_delete_added_codes",
                c.retro_index_delete_added_codes, "Keep the codes that were added.");
}

void add_query(FlagTable& table, retro::RetroConfig& c) {
  table.group("search");
  table.add("--retro-query-ef-search", c.retro_query_ef_search,
            "How thoroughly a graph of lists (HNSW) is searched.");
  table.add("--retro-query-nprobe", c.retro_query_nprobe,
            "Lists that a search visits, at most all.");
  table.add("--retro-query-num-neighbors-query", c.retro_query_num_neighbors_query,
            "Chunks to find, before those of the sample's documents are left out.");
  table.add("--retro-query-num-neighbors-save", c.retro_query_num_neighbors_save,
            "Neighbours to save of each chunk.");
}

}  // namespace

FlagTable retro_flags(RetroFlags& flags) {
  FlagTable table;
  table.group("run");
  table.add_optional("--retro-workdir", flags.config.retro_workdir,
                     "Directory of all files that are made.");
  table.add("--retro-tasks", flags.config.retro_tasks,
            "build, or some of db-build, index-train, index-add (both: index-build) and "
            "query-pretraining-neighbors, with commas. Work that is done is not done again.");
  table.add("--retro-block-size", flags.config.retro_block_size, "Chunks in a file.");
  table.add("--retro-doc-block-size", flags.config.retro_doc_block_size, "Documents in a file.");
  add_samples(table, flags);
  add_embedder(table, flags);
  add_index(table, flags.config);
  add_query(table, flags.config);
  return table;
}

}  // namespace megatron::cli
