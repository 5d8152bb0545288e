# Counts test cases: prints "<passed> <failed> <skipped>", and the name of each that failed to the
# file `names`.
#
#   awk -v names=reports/failed.txt -f scripts/count_tests.awk reports/*.xml
#
# ctest.xml has one entry for each test program; the other files are GoogleTest's, one for each
# program that finished. A program without such a file (it crashed, ran out of time, or does not use
# GoogleTest) counts as one case, and so does a failed program that reports no failed case.

function attribute(line, name,   from) {
  if (!match(line, "[ ]" name "=\"[^\"]*\"")) return ""
  from = RSTART + length(name) + 3
  return substr(line, from, RSTART + RLENGTH - 1 - from)
}

BEGIN { printf "" >names }

FNR == 1 {
  is_ctest = FILENAME ~ /(^|\/)ctest\.xml$/
  program = FILENAME
  sub(/.*\//, "", program)
  sub(/\.xml$/, "", program)
  in_case = 0
}

/<testcase / {
  if (is_ctest) {
    entry = attribute($0, "name")
    state[entry] = attribute($0, "status")
  } else {
    result = attribute($0, "result")
    has_report[program] = 1
    in_case = (result == "completed")
    test = attribute($0, "classname") "." attribute($0, "name")
    if (result == "completed") cases[program]++
    if (result == "skipped") skipped++
  }
}

/<failure/ && !is_ctest && in_case {
  bad[program]++
  in_case = 0
  print program ": " test >names
}

END {
  for (program in has_report) {
    passed += cases[program] - bad[program]
    failed += bad[program]
  }
  for (entry in state) {
    program = (entry in has_report) ? entry : entry "_test"
    if (state[entry] == "run") {
      if (!(program in has_report)) passed++
    } else if (state[entry] == "fail") {
      if (bad[program] == 0) {
        failed++
        print program ": ended without a failed case" >names
      }
    } else {
      skipped++
    }
  }
  print passed + 0, failed + 0, skipped + 0
}
