# awk -f variant_table.awk FIRST.txt SECOND.txt ...: assembly of the functions f that every list has
# as f.FIRST, f.SECOND, .... A call of f jumps to the entry of f in mg_cpu_functions, at first
# f.FIRST. mg_cpu_variants has a row of mg_cpu_num_functions entries for each list. The table links
# mg_choose_instruction_set (megatron/kernels/instruction_set.cpp), which chooses a row.
FNR == 1 {
  ++num_variants
  split(FILENAME, parts, "/")
  variants[num_variants] = parts[length(parts)]
  sub(/\.txt$/, "", variants[num_variants])
}
{
  name = substr($0, 1, length($0) - length(variants[num_variants]) - 1)
  if (num_variants == 1) names[++num_names] = name
  ++count[name]
}
function row(variant,    i) {
  for (i = 1; i <= num_functions; ++i) printf "  .quad \"%s.%s\"\n", functions[i], variant
}
END {
  print ".text"
  for (i = 1; i <= num_names; ++i) {
    name = names[i]
    if (count[name] != num_variants) continue
    printf ".balign 16\n.globl %s\n.type %s, @function\n%s:\n", name, name, name
    printf "  endbr64\n  jmp *mg_cpu_functions+%d(%%rip)\n.size %s, . - %s\n", 8 * num_functions, name, name
    functions[++num_functions] = name
  }
  print ".data\n.balign 8\n.globl mg_cpu_functions\n.hidden mg_cpu_functions\nmg_cpu_functions:"
  row(variants[1])
  print ".section .data.rel.ro, \"aw\"\n.balign 8\n.globl mg_cpu_variants\n.hidden mg_cpu_variants\nmg_cpu_variants:"
  for (v = 1; v <= num_variants; ++v) row(variants[v])
  print ".quad mg_choose_instruction_set"
  print ".section .rodata\n.balign 8\n.globl mg_cpu_num_functions\n.hidden mg_cpu_num_functions\nmg_cpu_num_functions:"
  printf "  .quad %d\n", num_functions
  print ".section .note.GNU-stack, \"\", @progbits"
}
