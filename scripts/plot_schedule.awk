# Draws one iteration of a pipeline as SVG, from the trace of all its ranks.
#
#   megatron launch ... pretrain-gpt ... --profile --profile-ranks 0 1 2 3
#   awk -f scripts/plot_schedule.awk profile.json >schedule.svg
#
# A row for each rank, a box for each microbatch with its number: forward blue, backward orange, weight
# gradients of their own pass green, the lighter the later the chunk. -v iteration=N draws the N-th traced iteration; the last by default.
function field(name,    at, rest) {
  at = index($0, "\"" name "\":")
  if (!at) return ""
  rest = substr($0, at + length(name) + 3)
  sub(/[,}].*/, "", rest)
  gsub(/"/, "", rest)
  return rest
}
/"ph":"X"/ && /"tid":0/ {
  name = field("name")
  if (name !~ /^(iteration|forward_step|backward_step|weight_step)$/) next
  rank = field("pid") + 0
  if (!origin) origin = field("ts") + 0
  begin = field("ts") - origin
  end = begin + field("dur")
  if (name == "iteration") {
    number = ++iterations[rank]
    first[rank, number] = begin
    last[rank, number] = end
    if (rank >= ranks) ranks = rank + 1
    next
  }
  n = ++steps
  step_rank[n] = rank; step_begin[n] = begin; step_end[n] = end
  pass[n] = name
  if (name == "weight_step") has_weights = 1
  microbatch[n] = field("microbatch") + 0
  chunk[n] = field("chunk") + 0
}
END {
  if (!iteration) iteration = iterations[0]
  for (rank = 0; rank < ranks; ++rank) {
    if (rank == 0 || first[rank, iteration] < low) low = first[rank, iteration]
  }
  # The optimizer's part is left out: the picture ends with the last step.
  for (n = 1; n <= steps; ++n) {
    rank = step_rank[n]
    inside[n] = step_begin[n] >= first[rank, iteration] && step_end[n] <= last[rank, iteration]
    if (inside[n] && step_end[n] > high) high = step_end[n]
  }
  left = 60; width = 1000; row = 34; height = ranks * row + 46
  scale = width / (high - low)
  split("#3b6ea5 #9cc3e6 #c6ddf2 #e3eef9", blue, " ")
  split("#d9772b #f6bd87 #fad9ba #fdecdd", orange, " ")
  split("#4c8f4f #a3cfa5 #cbe5cc #e6f3e6", green, " ")
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n", left + width + 10, height
  printf "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", left + width + 10, height
  for (rank = 0; rank < ranks; ++rank) {
    y = rank * row + 8
    printf "<text x=\"6\" y=\"%d\">rank %d</text>\n", y + 17, rank
    printf "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"26\" fill=\"#f3f3f3\"/>\n", left, y, width
  }
  for (n = 1; n <= steps; ++n) {
    if (!inside[n]) continue
    x = left + (step_begin[n] - low) * scale
    w = (step_end[n] - step_begin[n]) * scale
    y = step_rank[n] * row + 8
    shade = chunk[n] < 3 ? chunk[n] + 1 : 4
    printf "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"26\" fill=\"%s\" stroke=\"white\" stroke-width=\"0.5\"/>\n", x, y, w, pass[n] == "forward_step" ? blue[shade] : pass[n] == "backward_step" ? orange[shade] : green[shade]
    if (w > 7) printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"%s\">%d</text>\n", x + w / 2, y + 17, chunk[n] ? "black" : "white", microbatch[n]
  }
  y = ranks * row + 26
  printf "<text x=\"%d\" y=\"%d\">0 ms</text>\n", left, y
  printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.1f ms</text>\n", left + width, y, (high - low) / 1000
  printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">forward blue, backward orange, %snumbers are microbatches, lighter is a later chunk</text>\n", left + width / 2, y, has_weights ? "weight gradients green, " : ""
  print "</svg>"
}
