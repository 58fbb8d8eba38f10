# make demo    the default model answers a prompt with and without drafting, and the tokens are compared
# make test    linters, types, tests
# make bench   the benchmarks
# make docs    bring the tables in docs/ up to date with the code
# make clean   remove what the others made

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Options for installing PyTorch, for instance the index of its CPU-only builds.
TORCH ?= torch==2.13.0
TORCH_OPTIONS ?=

DRAFTER ?= default
PROMPT ?= What is 15% of 80? Explain step by step.
TOKENS ?= 128
TESTS ?=

.PHONY: demo test lint bench docs clean

demo: $(VENV)/.package
	$(BIN)/draftproof generate "$(PROMPT)" --drafter "$(DRAFTER)" --temperature 0 --max-tokens $(TOKENS) --compare

# Two processes of one thread each: on a small machine, more threads than cores wait for each other. All kernels are compiled
# beforehand when all tests run; some tests alone (TESTS) compile what they use.
test: lint
	$(if $(TESTS),,cd tests && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m support.compile_ahead)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(TESTS)

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests bench docs
	$(BIN)/ruff format --check src tests bench docs/refresh.py
	$(BIN)/mypy

bench: $(VENV)/.package
	$(BIN)/python bench/verify.py

docs: $(VENV)/.package
	$(BIN)/python docs/refresh.py

# PyTorch first and alone: it is by far the largest, and the one people choose a build of.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(TORCH_OPTIONS) "$(TORCH)"
	touch $@

$(VENV)/.package: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --editable ".[dev]"
	touch $(VENV)/.package $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} +
