# Parts that a build may leave out, all on by default; the preset core has none of them. The program
# names the option of a part that it lacks (megatron/core/parts.h.in).
set(MG_PARTS)
macro(mg_part name text)
  option(MG_${name} "${text}" ON)
  list(APPEND MG_PARTS ${name})
endmacro()

# The annexes: folders of annex/.
mg_part(ACCELERATE "Configuration files and command line of Accelerate")
mg_part(CORPUS "Tools that clean, filter and de-duplicate text")
mg_part(DEEPSPEED "Configuration files and command line of DeepSpeed")
mg_part(EMISSIONS "Report of the energy of a training")
mg_part(RETRO "Training and generation with retrieved texts; needs HDF5")

# Libraries and what needs them.
mg_part(FAISS "retro-preprocess: search of neighbours")
mg_part(LZMA "Text files packed by xz")
mg_part(MPI "Ranks that mpirun or srun starts")
mg_part(PCRE2 "Regular expressions of a tokenizer.json")
mg_part(PROTOBUF "Files of TensorBoard and of Weights & Biases")
mg_part(SENTENCEPIECE "SentencePiece models, and their training")
mg_part(SERVER "serve, chat, text-generation-cli; live runs of MLflow and of Weights & Biases; needs cpp-httplib")
mg_part(SNAPPY "Parquet files packed by Snappy")
mg_part(YAML "Accelerate's configuration files in YAML")
mg_part(ZSTD "Parquet files packed by Zstandard")
