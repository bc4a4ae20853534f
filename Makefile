# Two commands matter: `make demo` and `make test`. All create what they need in .venv.
PYTHON ?= python3
# On Linux, pip takes a CUDA build of torch by default. For the smaller CPU build set TORCH_INDEX to
# PyTorch's CPU wheel index:  make demo TORCH_INDEX=<url>
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
IMAGE ?= draftwise
VENV := .venv
BIN := $(VENV)/bin
# A second environment holds what a plain `pip install draftwise` brings, and the tools of the tests.
LIGHT := .venv-light
WHEELS := build/wheels
BUILD_WHEEL = rm -rf $(WHEELS) && $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEELS) .
# A file is run by one process, and files start in the order of tests/conftest.py.
PARALLEL := --dist loadfile --no-loadscope-reorder --maxprocesses 8 --numprocesses
CORES := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')

.PHONY: demo demo-real test check unit light kernels every-case apiserver whole-apiserver e2e browser coverage docs image image-base run-image man format clean help

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

demo: $(VENV)/.installed ## Decide, on the bundled model and workloads, which way of speculating pays on this machine
	$(BIN)/draftwise decide bundle/target --minutes 6 --serve-args '--quantization int8' \
	  --candidate '{"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}' \
	  --candidate '{"method": "ngram_gpu", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}' \
	  --candidate '{"method": "suffix"}' \
	  --candidate '{"method": "draft_model", "model": "bundle/draft_model", "num_speculative_tokens": 4}' \
	  --candidate '{"method": "medusa", "model": "bundle/medusa", "num_speculative_tokens": 2}' \
	  --candidate '{"method": "mlp_speculator", "model": "bundle/mlp_speculator", "num_speculative_tokens": 2}' \
	  --candidate '{"method": "eagle", "model": "bundle/eagle", "num_speculative_tokens": 3}' \
	  --candidate '{"method": "eagle3", "model": "bundle/eagle3", "num_speculative_tokens": 3}' \
	  --candidate '{"method": "eagle3", "model": "bundle/p_eagle", "num_speculative_tokens": 3, "parallel_drafting": true}' \
	  --candidate '{"method": "mtp", "model": "bundle/mtp", "num_speculative_tokens": 3}' \
	  --candidate '{"method": "dflash", "model": "bundle/dflash", "num_speculative_tokens": 8}'

# Drafters that were trained for the published model, as far as they are there.
REAL := bundle/smollm2
REAL_eagle3 := --candidate '{"method": "eagle3", "model": "$(REAL)/eagle3", "num_speculative_tokens": 3}'
REAL_p_eagle := --candidate '{"method": "eagle3", "model": "$(REAL)/p_eagle", "num_speculative_tokens": 5, "parallel_drafting": true}'
REAL_mtp := --candidate '{"method": "mtp", "model": "$(REAL)/mtp", "num_speculative_tokens": 3}'
REAL_dflash := --candidate '{"method": "dflash", "model": "$(REAL)/dflash", "num_speculative_tokens": 7}'
REAL_draft_model := --candidate '{"method": "draft_model", "model": "$(REAL)/draft_model", "num_speculative_tokens": 3}'
TRAINED := $(notdir $(patsubst %/config.json,%,$(wildcard $(REAL)/*/config.json)))

demo-real: $(VENV)/.installed ## The same for a published model (98 MB, fetched on first use) at chat, code edits, summaries and JSON
	$(BIN)/draftwise fetch smollm2
	$(BIN)/draftwise decide "$$($(BIN)/draftwise fetch smollm2 --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["models"][0]["file"])')" \
	  --minutes 7 --max-tokens 96 --temperature 0 $(foreach kind,chat edit summary json,--workload $(REAL)/heldout/$(kind).jsonl) \
	  --candidate '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}' \
	  --candidate '{"method": "suffix"}' $(foreach method,$(TRAINED),$(REAL_$(method)))

test: $(LIGHT)/.installed ## Static checks and the whole test suite, side by side; each prints when it has ended
	@echo "Static checks and both parts of the test suite: about twelve minutes on two quiet cores; each prints when it has ended."
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target check unit light

check: $(VENV)/.installed ## Lint, types, architecture, and counts of names and wordings that may only fall
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/static/counts.py

unit: $(VENV)/.installed ## The tests that need the engine
	$(BIN)/pytest -m engine $(PARALLEL) $(CORES)

light: $(LIGHT)/.installed ## The tests of the torch-free part, on the built wheel
	$(BUILD_WHEEL)
	$(LIGHT)/bin/python -m pip install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	env -u PYTHONPATH $(LIGHT)/bin/pytest --light $(PARALLEL) $(CORES)

kernels: $(VENV)/.installed ## The GPU's kernels in Triton's interpreter, with every combination of their parameters
	DRAFTWISE_EVERY_CASE=1 $(BIN)/pytest tests/engine/kernels $(PARALLEL) $(CORES)

every-case: $(VENV)/.installed ## All tests with every combination of methods, situations and parameters, and three times the draws
	DRAFTWISE_EVERY_CASE=1 $(BIN)/pytest $(PARALLEL) $(CORES)

# Programs that stages run beside the package are built or unpacked there, once.
TOOLS ?= $(HOME)/.cache/draftwise/tools

apiserver: $(VENV)/.installed ## Build a current API server from Debian's packages, and ask it what it makes of our files
	catalogue/platform/crd_server.sh $(TOOLS)/crd-server
	nice -n 19 $(BIN)/python -m catalogue.api_server $(TOOLS)/crd-server $(TOOLS)/crds > catalogue/platform/api_server.json

whole-apiserver: $(VENV)/.installed ## By hand: build a whole API server (13 minutes); ask it about Kubernetes' own kinds, and undo a roll-out
	nice -n 19 catalogue/platform/whole_server.sh $(TOOLS)/whole-server
	$(BIN)/python -m catalogue.whole_server $(TOOLS)/whole-server tests/support/kubectl > catalogue/platform/whole_server.json

e2e: $(VENV)/.installed ## A canary, its drafter going wrong, and the way back, with Prometheus, Alertmanager and HAProxy
	catalogue/platform/service.sh $(TOOLS)/service
	DRAFTWISE_TOOLS=$(TOOLS) $(BIN)/pytest tests/deploying/test_end_to_end.py tests/guarding/test_kills.py --durations 1

browser: $(VENV)/.installed ## The playground and `draftwise ui` in an installed Chromium; fetches pyodide and axe-core from npm
	npm install --silent --no-save --prefix $(TOOLS)/browser pyodide@314 axe-core@4
	DRAFTWISE_TOOLS=$(TOOLS) $(BIN)/pytest tests/ui --durations 3

coverage: $(VENV)/.installed $(LIGHT)/.installed ## Both parts again, with the share of lines and branches that they run
	rm -f .coverage .coverage.*
	$(BIN)/pytest -m engine $(PARALLEL) $(CORES) --cov --cov-report= --cov-fail-under=0
	$(BUILD_WHEEL)
	$(LIGHT)/bin/python -m pip install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	env -u PYTHONPATH $(LIGHT)/bin/pytest --light $(PARALLEL) $(CORES) --cov --cov-append --cov-report= --cov-fail-under=0
	$(BIN)/coverage report

docs: $(VENV)/.installed ## Build the documentation site in build/docs/site, with the playground where `make browser` ran
	$(BIN)/python -m docs.site
	if [ -d $(TOOLS)/browser ]; then $(BIN)/python -m docs.playground build/docs/site/playground --pyodide $(TOOLS)/browser/node_modules/pyodide; fi

BUILDER := $(shell command -v podman || command -v buildah || echo docker)
# Behind a proxy that signs anew: BUILD_FLAGS='--volume /etc/ssl/certs/ca-certificates.crt:/etc/ssl/certs/ca-certificates.crt:ro'
BUILD_FLAGS ?=

image: $(VENV)/.installed ## Build an image with podman or buildah: EXTRAS='[engine]', BASE=..., IMAGE=..., BUILD_FLAGS=...
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(BUILDER) build --file Containerfile --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg EXTRAS='$(EXTRAS)' $(BUILD_FLAGS) .

image-base: ## Make BASE from Debian's packages alone, where no registry can be reached: root, mmdebstrap, buildah
	catalogue/platform/image_base.sh $(if $(BASE),$(BASE),localhost/debian-python)

run-image: $(VENV)/.installed ## Run the commands of examples/kubernetes out of IMAGE, as nobody on a read-only root: root, buildah
	container=$$(buildah from $(IMAGE)) && trap "buildah rm $$container" EXIT && \
	  $(BIN)/python -m catalogue.run_image "$$(buildah mount $$container)" > catalogue/platform/run_image.json

man: $(VENV)/.installed ## Write the manual page, build/draftwise.1
	$(BIN)/python -m docs.manual

format: $(VENV)/.installed ## Format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "draftwise needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c constraints.txt '$(TORCH)'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[engine,dev]'
	$(BIN)/python -m compileall -q src  # as pip does for a wheel: a server starts 0.6 s of processor time earlier
	touch $@

$(LIGHT)/.installed: $(VENV)/.installed
	$(BUILD_WHEEL)
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet --upgrade pip
	$(LIGHT)/bin/python -m pip install --quiet -c constraints.txt $(WHEELS)/*.whl
	$(LIGHT)/bin/draftwise --version
	$(LIGHT)/bin/python -m pip install --quiet -c constraints.txt "$$(echo $(WHEELS)/*.whl)[test]"
	touch $@

clean: ## Remove the environment and caches
	rm -rf $(VENV) $(LIGHT) build .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
