# isoattn: two commands need nothing but Python >= 3.11 and make:  make demo   and   make test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MEMBERS := packages/core packages/vision packages/graph packages/wsi packages/matching apps
INSTALLED := $(VENV)/.installed
XDIST ?= 2

.PHONY: demo test test-slow check constraints clean

demo: $(INSTALLED)  ## the main job: a paired ablation on real images, with a report
	$(BIN)/isoattn ablate run marked_rows --preset demo

test: $(INSTALLED)  ## the default tests, under 15 minutes on 2 cores
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(XDIST) -m "not slow"

test-slow: $(INSTALLED)  ## the tests marked slow
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(XDIST) -m slow

check: $(INSTALLED)  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p isoattn.core -p isoattn.vision -p isoattn.graph -p isoattn.wsi -p isoattn.matching -p isoattn.apps -p isoattn.ablate

$(INSTALLED): constraints.txt pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "isoattn needs Python >= 3.11; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
	  hypothesis mypy pytest pytest-xdist ruff types-PyYAML $(addprefix -e ,$(addprefix ./,$(MEMBERS)))
	touch $@

constraints:  ## resolve anew (needs uv) and write constraints.txt without any host
	uv lock
	uv export --no-emit-workspace --no-annotate --no-header --no-hashes --all-groups -o constraints.txt

clean:  ## remove the environment and caches; runs/ is kept
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
