# Shows Doxygen the comments of a header: contracts are plain // comments, which it would skip.
#
#   // text            becomes   /// text
#   int x;  // text    becomes   int x;  ///< text
#   //   formula       becomes   ///       formula, a code block
function escaped(text) {
  gsub(/\\/, "\\\\", text)
  gsub(/[<>@#&]/, "\\\\&", text)
  return text
}

/^ *#/ { print; next }

{
  place = index($0, "//")
  if (place == 0) { print; next }
  code = substr($0, 1, place - 1)
  text = substr($0, place + 2)
  if (code ~ /"/) { print; next }  # may be in a string
  if (code ~ /^ *$/) {
    print code "///" (text ~ /^    *[^ ]/ ? "     " text : escaped(text))
  } else if (code ~ /[;,] *$/ || code ~ /[A-Za-z0-9_] +$/) {
    print code "///<" escaped(text)
  } else {
    print
  }
}
