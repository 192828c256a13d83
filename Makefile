# `make serve` runs the server, `make test` runs the tests; both set up .venv on first use.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Pins build requirements too, so that tomorrow's install is today's.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
SOURCES := protocol layout metadata controller sessions segments gateway spark benchmarks tests

.PHONY: serve test integration check lint format proto docs bench soak flakes pack spark clean

# Tests start hundreds of processes, each of which would compile all of Vela again where this is set.
test check integration soak flakes: export PYTHONDONTWRITEBYTECODE :=

serve: $(VENV)/.runtime  ## run the server on an embedded Valkey, data in ./vela-data
	@exec $(BIN)/vela serve $(ARGS)

# ARGS may select tests of one half only. pytest tells by 5 that it has run nothing, which is a failure if both say so;
# by 1 that tests failed, which is no reason not to run the others.
test: $(VENV)/.dev  ## all tests but those of the next target and the soak ones
	$(BIN)/pytest -n 3 --dist worksteal -m "not soak and not integration and not spark" $(ARGS); first=$$?; \
	case $$first in 0|1|5) ;; *) exit $$first;; esac; \
	$(BIN)/pytest -m "spark and not soak and not integration" $(ARGS); second=$$?; \
	[ $$first -ne 1 ] || exit $$first; [ $$second -ne 5 ] || exit $$first; exit $$second

# One process: each of them takes all cores.
integration: $(VENV)/.dev  ## tests with whole programs of others: Spark with its executors, packed environments, foreign clients
	$(BIN)/pytest -m "integration and not soak" $(ARGS)

check: lint  ## what every commit passes: format, lint, types, imports, fast tests
	$(BIN)/pytest -n 3 --dist worksteal -m "not soak and not integration and not slow and not spark" -q $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# protoc runs from the repository root, so that the registered file name is unique.
proto: $(VENV)/.dev  ## regenerate protocol/wire from the .proto file
	$(BIN)/python -m grpc_tools.protoc -I. --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --python_out=. --mypy_out=. protocol/wire/pulsar_api.proto

docs: $(VENV)/.dev  ## regenerate the pages that are made from the code
	$(BIN)/python -m gateway.settings_page > docs/settings.md

spark: $(VENV)/.spark  ## set up what `vela trace synth`, `analyze` and `replay` need; Java 17 comes from elsewhere

pack: $(VENV)/.spark  ## the environment for the executors of a Spark cluster, as an archive
	$(BIN)/python -m spark.packing dist/vela-spark.tar.gz

bench: $(VENV)/.dev  ## figures as ratios against a floor of the same run
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.dev  ## the long tests
	$(BIN)/pytest -n 4 --dist worksteal -m soak tests/faults/test_messages.py $(ARGS)
	$(BIN)/pytest -m soak --ignore tests/faults/test_messages.py $(ARGS)

# RUNS=6 of the suite, or of what ARGS selects; RED=50 runs what was ever red so many times.
flakes: $(VENV)/.dev  ## tests that chance decides: random order, in turns alone and beside busy loops
	@$(BIN)/python -m tests.flakes $(if $(RUNS),--runs $(RUNS)) $(if $(RED),--red $(RED)) $(if $(SEED),--seed $(SEED)) \
	  --arguments='$(subst ','\'',$(ARGS))'

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Vela needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -e .
	@touch $@

$(VENV)/.spark: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -e '.[spark]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.spark $(VENV)/.runtime
