# SPDX-License-Identifier: Apache-2.0
# What a user and CI type. Each target installs what it needs into VENV first (quick when there is nothing to do).
#   make demo        encode sentences with MiniLM through our kernels; DEVICE is cuda, sim:a100, sim:h100, ...
#   make test        everything that CI runs
#   make lint        ruff, mypy (strict for codegen and bindings), clang-format where it and a .clang-format are there
#   make gpu-check   for the day a GPU is at hand; BUDGET in minutes, OUT is the report's folder
#   make clean       what make made in this checkout (the kernel cache stays: attnsmith clean empties it)
# Variables: VENV (default .venv), PYTHON (default python3). INSTALL=no runs PYTHON as it is: nothing is installed, and
# attnsmith comes from this checkout.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
INSTALL ?= yes
BUDGET ?= 8
OUT ?= build/gpu-check
DEVICE ?= auto

# The checkout as an importable package without installation: the mapping of pyproject.toml as relative links.
LINKS := build/links/attnsmith
make_links = @mkdir -p $(LINKS) && cd $(LINKS) && \
  ln -sfn ../../../codegen codegen && ln -sfn ../../../templates templates && ln -sfn ../../../tools tools && \
  for item in ../../../bindings/*; do ln -sfn "$$item" .; done

ifeq ($(INSTALL),no)
PY := $(PYTHON)
bootstrap = $(make_links)
export PYTHONPATH := $(CURDIR)/build/links$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY := $(VENV)/bin/python
bootstrap = @$(PYTHON) -I tools/bootstrap.py --venv "$(VENV)" --extra "$(1)"
endif

CXX_SOURCES := $(wildcard templates/include/attnsmith/*.hpp templates/include/attnsmith/*/*.hpp \
                          bindings/csrc/*.[ch]pp tools/ptxsim/csrc/*.[ch]pp tools/ptxsim/csrc/*.h)

.PHONY: help demo test lint gpu-check clean

help:
	@sed -n '3,8s/^# \{0,3\}//p' Makefile

demo:
	$(call bootstrap,demo)
	@"$(PY)" -m attnsmith.tools.cli demo --device "$(DEVICE)"

test:
	$(call bootstrap,test)
	@"$(PY)" -m attnsmith.tools.testrun

lint:
	$(call bootstrap,lint)
	@"$(PY)" -m ruff check .
	$(make_links)
	@python="$$(realpath -s "$$(command -v "$(PY)")")"; cd build/links && "$$python" -m mypy --strict --config-file ../../pyproject.toml --cache-dir ../mypy \
	  -p attnsmith --exclude 'attnsmith/(tools|templates)/'
	@if [ -f .clang-format ] && command -v clang-format >/dev/null; then \
	   clang-format --dry-run --Werror $(CXX_SOURCES); \
	 else echo "C++ formatting was not checked: that takes clang-format and a .clang-format file"; fi

gpu-check:
	$(call bootstrap,)
	@"$(PY)" -m attnsmith.tools.cli gpu-check --budget "$(BUDGET)" --out "$(OUT)"

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	find generated -mindepth 1 -not -name README.md -delete
