# Every target creates the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One process for each core. A process without tests left takes tests from another.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal
# studies/ is evidence made with the application, and no part of it; it has tests of its own.
PRODUCT := --ignore tests/studies
# Warnings are errors. The variable suppresses an advertisement.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What a test compares to_bertviz with. Of its dependencies boto3, for downloads, fits no present versions of others.
BERTVIZ := $(VENV)/.bertviz

.PHONY: demo test wheel-test lowest check types all-tests docs notebooks studies paper slurm browser cluster-test bench models

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	touch $@

$(BERTVIZ): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --no-deps bertviz==1.4.1
	touch $@

demo: $(INSTALLED)
	$(BIN)/python train.py fit --config configs/demo.yaml
	@echo
	@echo "The folder above has page.html, with everything on one page. Go on with:"
	@echo "    source .venv/bin/activate"
	@echo "    probing measure clark2019/heads --corpus sample    # every head, on each relation; docs/index.md has more"

test: $(INSTALLED) $(BERTVIZ)
	$(PYTEST) $(PRODUCT) -m "core or not slow" --durations 10

# The wheel, in a folder that has the tests and what they read, but nothing of the package. Its environment has the wheel,
# and after it the packages of $(VENV), without the checkout, which only a .pth file there leads to. What can fail in the
# wheel alone are imports, files of the package and their paths. So only those tests run that import all of it, start its
# commands, read its configs, templates, stubs, sources, lists and grammars, or run every config on tiny data.
WHEEL := .venv-wheel
OF_WHEEL := tests/test_wheel.py tests/test_package.py tests/test_start.py tests/test_train.py tests/results \
  $(addprefix tests/commands/test_,commands.py shorthand.py spelling.py sweep_plan.py view.py) \
  $(addprefix tests/corpora/test_,registry.py sample.py)
wheel-test: $(INSTALLED) $(BERTVIZ)
	rm -rf build $(WHEEL)
	$(BIN)/python -m venv $(WHEEL)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(WHEEL)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages.pth"
	mkdir -p $(WHEEL)/folder/docs
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL)/folder .
	rm -r build
	$(WHEEL)/bin/python -m pip install --quiet --no-deps $(WHEEL)/folder/*.whl
	cp -r pyproject.toml tests studies benchmarks $(WHEEL)/folder
	cp docs/glossary.md $(WHEEL)/folder/docs
	cd $(WHEEL)/folder && ../bin/python -m pytest --numprocesses auto --dist worksteal -m "core or not slow" $(OF_WHEEL)

# `make test` with the lowest version of every package that pyproject.toml names.
LOWEST := .venv-lowest
lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable '.[demo,dev]'
	touch $(LOWEST)/.installed
	$(MAKE) test VENV=$(LOWEST)

# mypy takes minutes of one core: it works beside the tests, which wait for other processes now and then.
check: $(INSTALLED) $(BERTVIZ)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(MAKE) --jobs 2 types all-tests

types: $(INSTALLED)
	$(BIN)/mypy

# The quick tests alone reach the bound of coverage, whose measurement costs half as much time again.
all-tests: $(INSTALLED) $(BERTVIZ)
	$(PYTEST) $(PRODUCT) -m "core or not slow" --cov --cov-fail-under=97
	$(PYTEST) $(PRODUCT) -m "slow and not core"
	$(MAKE) wheel-test
	$(MAKE) studies

docs: $(INSTALLED)
	$(MKDOCS)

# Execute the notebooks of examples/ in place; a test fails if their results are others.
notebooks: $(INSTALLED)
	$(BIN)/python -m tests.notebooks

studies: $(INSTALLED)
	$(PYTEST) tests/studies

# Every experiment of the seed papers, two runs at a time, and the table of their findings. A repeated command goes on.
paper: $(INSTALLED)
	$(BIN)/python train.py sweep studies/paper.yaml --jobs 2; code=$$?; $(BIN)/python -m studies.paper && exit $$code

# $(call debian,program,packages): install Debian packages if the program is missing.
debian = PATH="$$PATH:/usr/sbin"; command -v $(1) >/dev/null || { \
	  command -v apt-get >/dev/null || { echo "There is no apt-get here: install $(2)." >&2; exit 1; }; \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi; \
	  command -v "$${sudo:-true}" >/dev/null || { echo "Run as root, or install sudo, to install $(2)." >&2; exit 1; }; \
	  $$sudo apt-get update && $$sudo apt-get install -y --no-install-recommends $(2); }

slurm:
	@$(call debian,slurmd,slurm-wlm slurmctld slurmd slurm-client munge)

# The browser of the tests of pages.
browser:
	@$(call debian,chromium,chromium)

# Three real models for tests and studies, as folders of transformers. A folder that is there is left as it is.
MAKE_MODELS := ../shared/models/make
models: $(INSTALLED)
	@test -f $(MAKE_MODELS) || { echo "There is no $(MAKE_MODELS). Download the models from their hub instead, and set PROBING_MODELS to the folder of their folders." >&2; exit 1; }
	$(BIN)/python $(MAKE_MODELS) multilingual-e5-small smollm2-135m gemma-3-270m --out "$${PROBING_MODELS:-../models}"

# The tests start and stop their own SLURM on this machine.
cluster-test: $(INSTALLED) slurm
	$(BIN)/python -m pytest -m cluster tests/cluster

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks.extraction
	$(BIN)/python -m benchmarks.probe_training
	$(BIN)/python -m benchmarks.classifier_training
	$(BIN)/python -m benchmarks.heads
	$(BIN)/python -m benchmarks.surface
	$(BIN)/python -m benchmarks.head_distances
	$(BIN)/python -m benchmarks.ablation
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.models
	$(BIN)/python -m benchmarks.prediction
	$(BIN)/python -m benchmarks.start --rounds 5
