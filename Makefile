# Two commands to begin with: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint docs bench clean

demo: $(VENV)/.ready
	$(BIN)/python examples/digits.py

test: $(VENV)/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py

bench: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/bench.py --all --write-docs $(if $(wildcard benchmarks/gpu.json),--gpu-json benchmarks/gpu.json)

$(BIN)/pip:
	@echo "Setting up $(VENV): a minute or two, the first time …"
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed. Try: make PYTHON=python3.12 demo" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.ready: pyproject.toml | $(BIN)/pip
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/pip
	$(INSTALL) -e ".[dev]"
	touch $(VENV)/.ready $@

$(BENCH)/.ready: pyproject.toml
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[bench,plot]"
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) build dist
