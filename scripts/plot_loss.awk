# Draws the training loss of a metrics file (JSON lines) as text.
#
#   awk -f scripts/plot_loss.awk metrics.jsonl
#
# Each column is the mean of its iterations.

function field(name,   value) {
  if (!match($0, "\"" name "\": *-?[0-9.]+([eE][-+]?[0-9]+)?")) return ""
  value = substr($0, RSTART, RLENGTH)
  sub(/.*: */, "", value)
  return value
}

BEGIN {
  width = 64
  height = 14
}

{
  iteration = field("iteration")
  value = field("lm loss")
  if (iteration == "" || value == "") next
  at[++n] = iteration
  loss[n] = value
}

END {
  if (n == 0) {
    print "no losses"
    exit 1
  }
  if (n < width) width = n
  for (i = 1; i <= n; ++i) {
    column = int((i - 1) * width / n)
    sum[column] += loss[i]
    count[column]++
  }
  low = high = sum[0] / count[0]
  for (c = 0; c < width; ++c) {
    mean[c] = sum[c] / count[c]
    if (mean[c] < low) low = mean[c]
    if (mean[c] > high) high = mean[c]
  }
  step = (high - low) / (height - 1)
  if (step == 0) step = 1
  for (row = 0; row < height; ++row) {
    line = ""
    for (c = 0; c < width; ++c) line = line (int((high - mean[c]) / step + 0.5) == row ? "*" : " ")
    sub(/ +$/, "", line)
    printf "%8.3f | %s\n", high - row * step, line
  }
  rule = ""
  for (c = 0; c < width; ++c) rule = rule "-"
  printf "%8s +-%s\n", "", rule
  printf "%8s   iteration %d to %d, loss %.3f to %.3f\n", "", at[1], at[n], loss[1], loss[n]
}
