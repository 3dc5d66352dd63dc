# make demo   trains CIFAR-10 as 2 nodes x 2 processes on this machine
# make check  ruff, mypy and the quick tests: without engines, heavy frameworks and tests that take seconds; 3 minutes
# make test   ruff, mypy and all tests; those whose engine is missing are skipped (scripts/install-engines.sh)
# make parity the tests that `make test` leaves out, unless JOBSDK_PARITY=1: they run PySpark's TorchDistributor, Ray
#             Train, torchrun and the like beside ours, or a slow framework on an engine when `make test` covers each alone
# make audit  bandit on the package's code, pip-audit on the packages it uses (AUDIT_ARGS="--require-service")
# make docs   the tables of docs/reference anew, and the documentation site in site/; a warning is an error
# make chaos  every fault of tests/chaos three times at random moments (CHAOS_ARGS="--rounds 1 --seed 7"): 10 minutes
# make bench  all benchmarks, and docs/benchmarks.md from them: 12 minutes on an otherwise idle machine
#
# demo, check and test make .venv on their own, bench makes .venv-bench. PYTHON=python3.12 picks the interpreter for a new one.
# PYTEST_ARGS goes to the pytest of `make test`: many tests wait rather than work, so five files run at a time.
# CHECK_ARGS goes to that of `make check`.
# PIP_ARGS goes to pip; for a torch without CUDA, a tenth of the size:
# PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= --numprocesses 5 --dist loadfile --no-loadscope-reorder
CHECK_ARGS ?= --numprocesses 3 --dist worksteal
CHAOS_ARGS ?= --rounds 3
AUDIT_ARGS ?=
BIN := $(VENV)/bin

.PHONY: demo check test parity lint audit docs chaos bench clean

demo: $(VENV)/installed-demo
	$(BIN)/python scripts/demo.py

# Thousands of processes import what is tested: it is compiled once, also where the environment says otherwise.
check test parity: export PYTHONDONTWRITEBYTECODE =
check: lint audit
	$(BIN)/python -m pytest -m "not engine and not framework and not slow" $(CHECK_ARGS)

test: lint
	$(BIN)/python -m pytest $(if $(filter 1,$(JOBSDK_PARITY)),,-m "not parity") $(PYTEST_ARGS)

parity: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m parity $(PYTEST_ARGS)
	scripts/parity.sh --note

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

audit: $(VENV)/installed-dev
	$(BIN)/python scripts/audit.py $(AUDIT_ARGS)

docs: $(VENV)/installed-docs
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

chaos: $(VENV)/installed-dev
	$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

# The peers pin what others need in other versions: they have an environment of their own.
bench:
	$(MAKE) VENV=.venv-bench .venv-bench/installed-bench
	.venv-bench/bin/python -m benchmarks --write

# One stamp for each extra. All of it is installed with one command, so that nothing asks for another torch. The pip
# that comes with an older Python gives up (InconsistentCandidate) where it has to try versions that fit azure-ai-ml.
$(VENV)/installed-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) 'pip>=25'
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --editable '.[$*]'
	@touch $@

# A stamp is no intermediate file.
.PRECIOUS: $(VENV)/installed-%

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
