PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check check-kernels lock clean

# Set-up happens once for each content of a lock: the stamp's name carries its checksum.
checksum = $(firstword $(shell cat requirements/$(1).txt requirements/torch.txt | cksum))
RUN_READY := $(VENV)/ready-run-$(call checksum,run)
DEV_READY := $(VENV)/ready-dev-$(call checksum,dev)

run: $(RUN_READY)  ## Everything on this machine: http://127.0.0.1:8000
	@exec $(BIN)/python manage.py serve

test: $(DEV_READY)  ## The whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder

check: $(DEV_READY)  ## Lint, format, types, import contracts, migrations, deployment settings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check --deploy --fail-level WARNING

ARCHITECTURES := compute_75,code=sm_75 compute_80,code=sm_80 compute_90a,code=sm_90a compute_120,code=sm_120

check-kernels:  ## Compile every CUDA source for every architecture; needs nvcc and no GPU
	@command -v nvcc >/dev/null || { echo "there is no nvcc here: the CUDA sources are not compiled"; exit 0; }; \
	set -e; for source in kernels/csrc/*.cu; do for target in $(ARCHITECTURES); do \
		echo "$$source $$target"; nvcc -std=c++17 -O1 -gencode arch=$$target -c $$source -o /dev/null; \
	done; done

lock:  ## Resolve pyproject.toml anew into requirements/
	$(UV) pip compile $(LOCK_OPTIONS) --upgrade --extra embedded --extra engine --extra structured \
		$(LOCK_INPUT) -o requirements/run.txt
	$(UV) pip compile $(LOCK_OPTIONS) --upgrade --constraint requirements/run.txt --all-extras --group dev \
		$(LOCK_INPUT) -o requirements/dev.txt

LOCK_INPUT := pyproject.toml requirements/torch-needs.in
LOCK_OPTIONS := --quiet --universal --python-version 3.11 --fork-strategy fewest --no-annotate \
	--custom-compile-command "make lock" --excludes requirements/torch.txt

clean:  ## Remove what set-up, tests and checks made; var/ stays
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The test tools come on top of what the service needs, so their set-up serves `make run` too.
$(RUN_READY): | $(BIN)/python
	@test -e $(DEV_READY) || $(BIN)/python -m pip install --quiet -r requirements/run.txt -r requirements/torch.txt
	@touch $@

$(DEV_READY): | $(BIN)/python
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt -r requirements/torch.txt
	@touch $@
