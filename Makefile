# The two commands of the README: `make demo` and `make test`. Each sets itself up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export VIBAYES_DATA ?= $(wildcard ../shared/data)

.PHONY: demo test env check lint types format docs bench clean

demo: env
	$(BIN)/vibayes demo

test: env
	$(BIN)/pytest -n 2 --dist worksteal

env: $(VENV)/.ready

$(VENV)/.ready: requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "vibayes needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: env
	$(BIN)/mypy

check: lint types test

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site dist build .mypy_cache .ruff_cache .pytest_cache demo-output
