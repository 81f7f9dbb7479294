# Two commands need nothing but Python 3.10-3.12, git and make: `make test` and `make bench`.
# Both set up .venv themselves, once. PYTHON=python3.12 chooses another python; SYSTEM_SITE=1 uses the packages that
# python has (its torch, its triton) and downloads nothing: for a GPU machine without a network.

PYTHON ?= python3
SYSTEM_SITE ?=
PY := .venv/bin/python
BOOTSTRAP := $(PYTHON) scripts/bootstrap.py $(if $(filter-out 0,$(SYSTEM_SITE)),--system-site)
# Two workers, and benchmarks run once as plain tests, where the pytest plug-ins for that are installed.
PYTEST_FLAGS = $$($(PY) -c 'import importlib.util as u; print(*(flag for plugin, flag in \
  {"xdist": "-n 2", "pytest_benchmark": "--benchmark-disable"}.items() if u.find_spec(plugin)))')
TREE := asv_bench scripts tests setup.py

.DEFAULT_GOAL := help
.PHONY: help venv test gpu-test bench host-bench site lint types format clean distclean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses a python; SYSTEM_SITE=1 uses its packages and no network"

venv: ## Set up .venv (every target below does it by itself)
	@command -v $(PYTHON) >/dev/null || { \
	  echo "roofgap: $(PYTHON): not found. Install Python 3.10-3.12 or name one: make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(BOOTSTRAP)

test: venv ## Run the tests; those that need a GPU are skipped where there is none
	@$(PY) -m pytest -q $(PYTEST_FLAGS)

gpu-test: venv ## Run the tests that need a GPU; refuses without one
	@$(PY) -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' || { \
	  echo "roofgap: no GPU that torch can use: gpu-test needs one. .venv/bin/roofgap doctor says what is missing." >&2; exit 1; }
	@$(PY) -m pytest -q -m gpu

bench: venv ## Compare the last two commits with asv, build the history site, say where it is
	@$(PY) scripts/bench.py

host-bench: venv ## Time what runs on the host (pytest-benchmark); kept in .benchmarks, for pytest-benchmark compare
	@$(PY) -m pytest -q -rN --benchmark-only --benchmark-autosave

site: venv ## Build the history site from the committed and the local results
	@$(PY) scripts/bench.py site

lint: venv ## Check format and lint
	@$(PY) -m ruff format --check . && $(PY) -m ruff check .

format: venv ## Rewrite what lint can mend
	@$(PY) -m ruff format . && $(PY) -m ruff check --fix .

types: venv ## Check types (mypy, strict)
	@$(PY) -m mypy -p roofgap && $(PY) -m mypy $(TREE)

clean: ## Remove caches, builds and asv's checkouts; trials (.roofgap) and results stay
	rm -rf build dist *.egg-info .asv/env .asv/html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## Remove .venv and the results of asv and host-bench too
	rm -rf .venv .asv .benchmarks
