# Two commands matter: `make quickstart` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := runtime/src src compat/src

.PHONY: help install quickstart check test bench clean

help: ## What can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed ## Make .venv with everything
	@echo 'Ready. Next, either of:'
	@echo '  make quickstart                                  train a network, deploy it, ask it'
	@echo '  source $(BIN)/activate && cd YOUR_PROJECT && runyard init'

$(VENV)/.installed: pyproject.toml runtime/pyproject.toml compat/pyproject.toml requirements-dev.txt scripts/install
	@PYTHON="$(PYTHON)" scripts/install

quickstart: $(VENV)/.installed ## Train a network on handwritten digits, deploy it, ask it; by the v1 API
	@$(BIN)/python examples/quickstart/quickstart.py

check: $(VENV)/.installed ## ruff, format, mypy strict, architecture tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src compat/src tests
	$(BIN)/pytest -q tests/shape

test: check ## Everything
	@scripts/system-packages
	$(BIN)/pytest -q -n 2 --dist worksteal --reruns 1 -rfER tests

bench: $(VENV)/.installed ## Measure the promises, peers beside us
	$(BIN)/python -m benchmarks

clean: ## Remove what was made here
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache benchmarks/.peers
