# Completion for fish: commands and flags, as `megatron --help` prints them.
function __megatron_flags
    set -l words (commandline -opc)
    megatron $words[2] --help 2>/dev/null | string match -rag '^  (--[^ ,]+)|, (--[^ ,]+)'
end
complete -c megatron -n '__fish_is_first_arg' -f -a "(megatron --help 2>/dev/null | string replace -rf '^  ([a-z]\S*) +(.*)' '\$1\t\$2')"
complete -c megatron -n 'not __fish_is_first_arg' -a '(__megatron_flags)'
complete -c megatron -l help
