# The daily commands. Each wraps a CMake preset or a script; see CONTRIBUTING.md.
MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc)
SOURCES = git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh'

.PHONY: help build debug test check bench asan ubsan tsan format format-check tidy lint docs-check api-docs site package demo clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+( [a-z-]+)*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

build:  ## the program, optimised: build/cpu/bin/megatron
	@cmake --preset cpu >/dev/null && cmake --build build/cpu --parallel $(JOBS) --target megatron

debug:  ## the same without optimisation: build/debug/bin
	@cmake --preset debug >/dev/null && cmake --build build/debug --parallel $(JOBS)

test:  ## the whole CPU test suite; needs no GPU
	@scripts/test.sh

check:  ## the unit tests alone, in a minute
	@cmake --preset cpu >/dev/null && cmake --build build/cpu --parallel $(JOBS) --target unit_tests
	@ctest --preset cpu --label-regex unit --parallel $(JOBS)

bench: build  ## the benchmark of this machine's CPU
	@build/cpu/bin/megatron bench

asan ubsan:  ## unit tests under the address and undefined-behaviour sanitizers
	@scripts/test.sh asan

tsan:  ## unit tests under the thread sanitizer
	@scripts/test.sh tsan

format:  ## rewrite the sources as .clang-format says
	@$(SOURCES) | xargs -0 -r clang-format-14 -i

format-check:  ## fail where "make format" would change something
	@scripts/lint.sh format

tidy:  ## clang-tidy over megatron/
	@MG_TIDY_FILES=9999 scripts/lint.sh tidy

lint:  ## floors, format, shell scripts, documents
	@scripts/lint.sh

docs-check:  ## links of the documents and the picture of the floors
	@scripts/lint.sh docs

api-docs:  ## the reference of the installed headers, by Doxygen: build/api/html
	@scripts/api_docs.sh

site:  ## documents and both API references as one site: build/site/html
	@scripts/site.sh

package:  ## a .deb, and a tarball with all libraries, for every processor with AVX2: build/package/packages
	@scripts/package.sh

demo:  ## train a small GPT on real text and let it write
	@scripts/demo.sh

clean:  ## remove build/
	@rm -rf build
