# Every target bootstraps what it needs: a virtual environment in .venv, pinned by constraints.txt.
# Nothing here needs PostgreSQL, Docker or network access beyond the package index.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One more than a small machine has cores: many tests wait for processes and for the clock.
WORKERS ?= 3
SEEDS   ?= 20
FIRST   ?= 1
MINUTES ?= 1
KIND    ?= either

# Of what pip says: a count now and then, and whatever is wrong. Not in awk, which may read its input in blocks.
PIP_PROGRESS := n=0 failed= ; while IFS= read -r line; do case "$$line" in \
  Collecting\ *|Processing\ *) [ $$((n % 5)) -ne 0 ] || echo "  package $$((n + 1)) of $$total"; n=$$((n + 1)) ;; \
  Installing\ collected*) echo "  unpacking" ;; \
  ERROR*|error*|Could\ not*|No\ matching*|THESE\ PACKAGES*) failed=1; printf "%s\n" "$$line" ;; \
  *) [ -z "$$failed" ] || printf "%s\n" "$$line" ;; esac; done

.DEFAULT_GOAL := help
.PHONY: help install up test check format bench peers simulate teeth chaos wheel schema lock clean

help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */make \1\t/' | expand -t 16

install: $(READY)  ## make the virtual environment

$(READY): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "duly needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "installing into $(VENV): $$(grep -c '==' constraints.txt) packages, a minute or two"
	@$(PYTHON) -m venv $(VENV) && echo "  environment made"
	@rm -f $(VENV)/.installed
	@{ $(BIN)/python -u -m pip install --disable-pip-version-check --progress-bar off --require-hashes -r constraints.txt && touch $(VENV)/.installed; } 2>&1 | { total=$$(grep -c '==' constraints.txt); $(PIP_PROGRESS); }
	@test -e $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

up: $(READY)      ## start duly with an embedded PostgreSQL (Ctrl-C stops it)
	@exec $(BIN)/duly up

test: $(READY)    ## everything, on a real PostgreSQL
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

check: $(READY)   ## format, lint, types, tidy and fast tests: under a minute
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -q -m "not slow"

format: $(READY)  ## rewrite the code in the house format
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --fix --quiet .

bench: $(READY)   ## measure duly; plots go to ./duly-bench
	$(BIN)/duly bench

peers: $(READY)   ## measure duly beside other task queues (installs them into .venv-peers)
	$(BIN)/python -m benchmarks.peers

simulate: $(READY)  ## run seeds FIRST to FIRST+SEEDS-1; KIND=store, fleet, or either in turn
	$(BIN)/python -m tests.simulation --kind $(KIND) --seeds $(SEEDS) --first $(FIRST) $(if $(SEED),--seed $(SEED))

teeth: $(READY)   ## plant deliberate bugs, one at a time, and see each of them caught
	$(BIN)/python -m tests.teeth

chaos: $(READY)   ## break a cluster for MINUTES minutes; SEED=n another plan, WIPE=n lose n tickets
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(WIPE),--wipe-queue $(WIPE))

schema: $(READY)  ## write src/duly/store/schema.sql again, after a new migration
	$(BIN)/python -m tests.schema_dump

wheel: $(READY)   ## build dist/duly-*.whl
	$(BIN)/python -m build --wheel --no-isolation

lock: $(READY)    ## choose versions again and write constraints.txt (needs `uv` on the PATH)
	uv pip compile --universal --python-version 3.11 --generate-hashes --upgrade --no-header --no-annotate --no-emit-index-url --quiet --extra dev --no-emit-package duly pyproject.toml --output-file constraints.txt

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
