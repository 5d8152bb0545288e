# megatron --help | awk -v version="$(megatron --version)" -f man_page.awk: the manual page.
function escaped(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  return text
}
BEGIN {
  split(version, words, " ")
  printf ".TH MEGATRON 1 \"\" \"megatron %s\" \"User Commands\"\n", words[2]
  print ".SH NAME\nmegatron \\- train, run and convert large language models"
  print ".SH SYNOPSIS\n.B megatron\n.I command\n.RI [ flags ]\n.br\n.B megatron\n.I command\n.B \\-\\-help"
  print ".SH DESCRIPTION\n.B megatron\ntrains GPT, BERT and T5 models on one or many processors and GPUs, as Megatron\\-LM does, and"
  print "generates, serves, evaluates and converts.\n.B megatron\n.I command\n.B \\-\\-help\nexplains the flags of a command."
  print ".SH COMMANDS"
}
/^not in this build/ { exit }
/^[a-z].*:$/ { sub(/:$/, ""); printf ".SS %s\n", escaped($0); next }
/^  [a-z]/ {
  name = $1
  sub(/^ +[^ ]+ +/, "")
  printf ".TP\n.B %s\n%s\n", escaped(name), escaped($0)
}
END {
  print ".SH ENVIRONMENT"
  print ".TP\n.B MEGATRON_CPU\nInstruction set of the CPU kernels: avx2, avx512 or avx512\\-bf16. By default the latest that the"
  print "processor has;\n.B megatron env\nprints it."
  print ".TP\n.B OMP_NUM_THREADS\nThreads of CPU kernels."
  print ".SH EXIT STATUS\n0 after success, 2 after an error of usage or input, 1 after any other."
}
