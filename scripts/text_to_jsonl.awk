# Turns plain text into loose JSON, one {"text": ...} per line.
#
#   awk -f scripts/text_to_jsonl.awk corpus.txt > corpus.jsonl
#
# A document is a run of whole paragraphs (or of lines in a text without blank lines) of about
# document_bytes, 2000 unless set with -v. The text is UTF-8; tabs are the only allowed controls.

# The line as the inside of a JSON string.
function escaped(line,   parts, n, i, joined) {
  gsub(/\\/, "&&", line)
  gsub(/"/, "\\\\&", line)
  n = split(line, parts, "\t")
  joined = parts[1]
  for (i = 2; i <= n; ++i) joined = joined "\\t" parts[i]
  return joined
}

function finish() {
  if (text != "") printf "{\"text\": \"%s\"}\n", text
  text = ""
  blanks = 0
}

BEGIN { if (!document_bytes) document_bytes = 2000 }

{ sub(/\r$/, "") }

/^[ \t]*$/ {
  ++blanks
  if (length(text) >= document_bytes) finish()
  next
}

{
  if (length(text) >= 4 * document_bytes) finish()
  if (text != "") {
    for (; blanks >= 0; --blanks) text = text "\\n"
  }
  text = text escaped($0)
  blanks = 0
}

END { finish() }
