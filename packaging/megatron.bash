# Completion for bash: commands, flags and the values of flags, as `megatron --help` prints them.
_megatron() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} help words
  if ((COMP_CWORD == 1)); then
    words="--help --version $(megatron --help 2>/dev/null | awk '/^  [a-z]/ { print $1 }')"
  else
    help=$(megatron "${COMP_WORDS[1]}" --help 2>/dev/null)
    # "--device {auto,cpu,cuda}": values of a flag.
    words=$(awk -v flag="$previous" '$1 == flag && $2 ~ /^{/ { gsub(/[{},]/, " ", $2); print $2 }' <<<"$help")
    if [[ -z $words && $word == -* ]]; then
      words="--help $(grep -oE '^  --[^ ]+(, --[^ ]+)*' <<<"$help" | tr -d ,)"
    fi
  fi
  [[ -z $words ]] || mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _megatron megatron
