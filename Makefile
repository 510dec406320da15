# `make demo` and `make test` need Python 3.11 or newer, make and a package index; each builds .venv first.
# An edited source needs no new installation; an edited pyproject.toml or constraints.txt gets one.

PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
BIN := .venv/bin
STAMP := .venv/installed
FOLDERS := conf models harness launch analysis

.PHONY: demo test lint types unit docs clean

demo: $(STAMP)
	$(BIN)/rankscope demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Type checkers cannot follow the editable installation, which is an import hook: links in .venv/types show them
# the five folders as rankscope.*, at their real place.
types: $(STAMP)
	MYPYPATH=.venv/types $(BIN)/mypy $(FOLDERS:%=-p rankscope.%)
	MYPYPATH=.venv/types $(BIN)/mypy --explicit-package-bases tests $(wildcard benchmarks)

unit: $(STAMP)
	$(BIN)/pytest -n 4 --dist worksteal

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it with PYTHON=..."; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev,fast,tensorboard,lightning,hf,prometheus,wandb,mlflow]'
	mkdir -p .venv/types/rankscope
	for folder in $(FOLDERS); do ln -sfn "$(CURDIR)/$$folder" .venv/types/rankscope/$$folder; done
	touch $@

# The parts of docs/ that are made from the code; a test fails if they are out of date.
docs: $(STAMP)
	$(BIN)/python -m rankscope.analysis.explain.describe
	$(BIN)/python -m rankscope.analysis.show.summary_schema

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
