# What can be done here: `make` lists it. Needs Python 3.11 or newer with venv, and nothing else.

.DEFAULT_GOAL := help
.PHONY: help setup run test lint docs bench compare-proxies soak sigterm fuzz triton servers clean

# The first Python that is new enough; PYTHON=/path/to/python overrides.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)

BIN := .venv/bin
TRITON := .venv-triton
SERVERS := .venv-servers
PIP := -m pip --disable-pip-version-check --quiet

help:  ## list what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

setup: .venv/test  ## everything that development needs, in .venv

run: .venv/demo  ## show what Forebay does (STAY=1 leaves it up, UPSTREAM=URL serves yours, REDIS=URL uses one)
ifdef UPSTREAM
	@exec $(BIN)/forebay serve --upstream '$(UPSTREAM)' $(if $(REDIS),--redis '$(REDIS)')
else
	@exec $(BIN)/forebay demo $(if $(filter-out 0,$(STAY)),--stay) $(if $(REDIS),--redis '$(REDIS)')
endif

test: .venv/test triton servers  ## run all tests (ARGS='-k config -x' picks and stops)
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/test  ## ruff, mypy and hadolint, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile

docs: .venv/demo  ## write again what is made from the code
	$(BIN)/python -m proxy.config_docs
	$(BIN)/python -m proxy.telemetry.reference > docs/metrics.md
	$(BIN)/python -m proxy.telemetry.dashboard > deploy/grafana/forebay.json

bench: .venv/test triton  ## measure against a bare server, the backend and Triton's batcher
	$(BIN)/python -m benchmarks $(ARGS)

compare-proxies: .venv/test  ## write docs/transparency.md: who passes what on, beside nginx and HAProxy
	$(BIN)/python -m benchmarks.compare_proxies docs/transparency.md

soak: .venv/test  ## an hour of everything at once, and nothing grows (MINUTES=2 is a short form)
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),60) $(ARGS)

fuzz: .venv/test triton servers  ## thousands of generated and hostile requests for every protocol (TIMES=25 as many as the suite)
	FOREBAY_EXAMPLES=$(or $(TIMES),25) $(BIN)/python -m pytest tests/protocols tests/fidelity $(ARGS)

sigterm: .venv/test  ## 100 SIGTERMs under load, and no accepted request is lost (ROUNDS=10 is a short form)
	$(BIN)/python -m benchmarks.sigterm --rounds $(or $(ROUNDS),100) $(ARGS)

# A real Triton from a wheel. It does not run everywhere; where it is missing, tests say so by name.
triton:  ## the Triton that tests and benchmarks use, in .venv-triton
	@test -e $(TRITON)/installed || { \
	  echo "installing Triton in $(TRITON)" && \
	  "$(PYTHON)" -m venv $(TRITON) && \
	  $(TRITON)/bin/python $(PIP) install 'numpy<2' && \
	  $(TRITON)/bin/python $(PIP) install --no-deps nvidia-pytriton==0.7.0 && \
	  touch $(TRITON)/installed; \
	} || { rm -rf $(TRITON); echo; echo "*** Triton cannot be installed here: the tests that need it are skipped. ***"; echo; } >&2

# Other real servers, for tests alone: a KServe model server, LitServe, and llama.cpp's own server.
servers:  ## the other model servers that tests use, in .venv-servers
	@test -e $(SERVERS)/installed || { \
	  echo "installing KServe, LitServe and llama.cpp in $(SERVERS)" && \
	  "$(PYTHON)" -m venv $(SERVERS) && \
	  $(SERVERS)/bin/python $(PIP) install kserve==0.21.0 litserve==0.2.19 xllamacpp==2026.10.11549 && \
	  touch $(SERVERS)/installed; \
	} || { rm -rf $(SERVERS); echo; echo "*** KServe, LitServe and llama.cpp cannot be installed here: the tests that need them are skipped. ***"; echo; } >&2

clean:  ## remove what was installed and cached
	rm -rf .venv $(TRITON) $(SERVERS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamps hold what was installed, so that a second `make` is instant.
.venv/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: install one, or say where it is with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv: on Debian, 'apt-get install python3-venv'" >&2; exit 1; }
	@"$(PYTHON)" -m venv .venv && touch $@

.venv/demo: .venv/python pyproject.toml
	@echo "installing what 'make run' needs in .venv"
	@$(BIN)/python $(PIP) install --editable '.[demo]' && touch $@

.venv/test: .venv/python pyproject.toml
	@echo "installing what the tests need in .venv"
	@$(BIN)/python $(PIP) install --editable '.[test]' && touch .venv/demo $@
