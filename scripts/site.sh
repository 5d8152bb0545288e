#!/usr/bin/env bash
# Makes the documents and both API references one site that can be searched: build/site/html/index.html.
# Fails on a dead link. Installs MkDocs and Doxygen where they are missing.
#
#   scripts/site.sh            with MG_REPOSITORY_URL links lead to the sources, too
set -euo pipefail
cd "$(dirname "$0")/.."
command -v mkdocs >/dev/null || scripts/bootstrap.sh mkdocs
out=build/site
mkdir -p "$out"
/usr/bin/python3 scripts/site_pages.py write "$out/pages"
scripts/api_docs.sh
cp -r build/api/html "$out/pages/cpp"

cat >"$out/mkdocs.yml" <<'END'
site_name: megatron.cpp
docs_dir: pages
site_dir: html
use_directory_urls: false
theme: {name: mkdocs, highlightjs: false, nav_style: light}
plugins: [search]
markdown_extensions: [tables, fenced_code, toc]
nav:
  - megatron.cpp: index.md
  - Tutorials:
END
for page in first-model from-megatron-lm from-accelerate from-deepspeed from-transformers experts many-gpus serving \
  troubleshooting; do
  echo "    - tutorials/$page.md"
done >>"$out/mkdocs.yml"
cat >>"$out/mkdocs.yml" <<'END'
  - Training: [parallel.md, zero.md, experts.md, finetune.md, report.md, trackers.md, retro.md, corpus.md, detoxify.md]
  - Serving: [serving.md]
  - Compatibility: [compat.md, launchers.md]
  - Programming: [library.md, python.md, python-reference.md, "C++ reference": cpp/index.html]
  - Performance: [performance.md, performance/training.md, performance/fp8.md, performance/experts.md,
      performance/generation.md, performance/ranks.md, performance/gpus.md, performance/cpu.md, performance/tokenizers.md]
  - Formats: [formats/native-checkpoint.md, formats/indexed-dataset.md, formats/index-cache.md, formats/vocabulary.md,
      formats/metrics.md, formats/wandb.md, formats/fingerprints.md]
  - Project: [architecture.md, status.md, packages.md, security.md, changes.md]
END
mkdocs build --quiet --strict --config-file "$out/mkdocs.yml"
/usr/bin/python3 scripts/site_pages.py check "$out/html"
echo "site: $out/html/index.html"
