# Corvo's commands. `make` alone lists them. Needs Python 3.11 or newer and a C compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PURE := .venv-pure
DEBUG := .venv-debug
DATA_DIR ?= data
ARGS ?=
ROUNDS ?= 200
ONLY ?=
COUNT ?= 100
MINUTES ?= 5
SEED ?=
STEPS ?= 3000
RUNNER := connectrpc.com/conformance/cmd/connectconformance
# Tests run on all cores; those of one file stay together and share a server.
SPREAD := -n auto --dist loadfile

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Bytecode is compiled when a module is first imported; most never are.
PIP_INSTALL := pip install --quiet --no-compile --constraint constraints.txt
# What the build back end needs; with it installed, builds use the pinned versions and no
# environment of their own.
BUILD_TOOLS := setuptools cython mypy

# Everything a compiled module can be made from; a directory is newer when a file left it.
SOURCES := setup.py $(shell find corvo -name __pycache__ -prune -o \
  \( -type d -o -name '*.py' -o -name '*.pyx' -o -name '*.pxd' \) -print)

.PHONY: help server build tested wheel sdk-wheel test test-full check format test-pure debug kills faults mirror-faults images sim
.PHONY: mutants fuzz fuzz-built h2spec conformance bench bench-micro compare clean
# Recipes use all cores themselves, and only one pip may change an environment at a time.
.NOTPARALLEL:

help:  ## List these commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

server: build  ## Build, then run a server on 127.0.0.1:8080 with its data in ./data
	$(BIN)/corvo server --data-dir $(DATA_DIR) $(ARGS)

build: $(VENV)/built  ## Make .venv and compile in place; nothing is done twice

tested: build $(VENV)/developing

wheel: build  ## Make dist/*.whl, which installs where there is no compiler
	rm -rf dist
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@du -h --apparent-size dist/*.whl

sdk-wheel: $(VENV)/tools  ## Make dist/corvo_client-*.whl, the Python client and worker
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist sdk/python

test: tested  ## Build, then run the whole fast test suite on it
	CORVO_BUILD=compiled $(BIN)/pytest $(SPREAD) $(ARGS)

test-full: tested  ## The tests that the suite runs scaled down, in full size
	$(BIN)/pytest -m full $(ARGS)

check: $(VENV)/developing  ## Lint, formatting, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(BIN):$$PATH" cython-lint corvo
	$(BIN)/lint-imports --no-cache

format: $(VENV)/developing  ## Format the sources
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test-pure: $(PURE)/built  ## The same suite against an interpreted install in .venv-pure
	CORVO_BUILD=interpreted $(PURE)/bin/pytest $(SPREAD) $(ARGS)

debug: $(DEBUG)/built  ## The same suite against a build with symbols and bounds checks in .venv-debug
	CORVO_BUILD=compiled $(DEBUG)/bin/pytest $(SPREAD) $(ARGS)

kills: tested  ## Kill a loaded server at random moments and at every failpoint (ROUNDS=200)
	PYTHONPATH=tests $(BIN)/python tools/kills.py --rounds $(ROUNDS) $(ARGS)

faults: tested  ## Break clusters under load: kills, links, disks, clocks (ROUNDS=3 ONLY=A5,A7-ring)
	PYTHONPATH=.:tests $(BIN)/python tools/cluster_faults.py --only "$(ONLY)" \
	  $(if $(filter command line environment,$(origin ROUNDS)),--rounds $(ROUNDS)) $(ARGS)

mirror-faults: tested  ## Stall, kill, delete and starve the mirror of a loaded server (ARGS="--seconds 60 --kills 50")
	PYTHONPATH=tests $(BIN)/python tools/disturb_mirror.py $(ARGS)

images: tested  ## Cut the power in recorded workloads and start from what is left (COUNT=100)
	PYTHONPATH=tests $(BIN)/python tools/images.py --count $(COUNT) $(ARGS)

sim: tested  ## Simulate clusters that break: many seeds, or one (SEED=7 STEPS=3000 ARGS="--full")
	PYTHONPATH=tests $(BIN)/python tools/simulate.py $(if $(SEED),--seed $(SEED)) --steps $(STEPS) $(ARGS)

mutants: tested  ## Put known bugs back, one at a time: does its scenario notice?
	$(BIN)/python tools/mutants.py $(ARGS)

fuzz: $(PURE)/built  ## Fuzz everything that gets bytes from outside, each target so long (MINUTES=5)
	$(PURE)/bin/$(PIP_INSTALL) atheris
	PYTHONPATH=tests $(PURE)/bin/python tools/fuzzer.py --minutes $(MINUTES) $(ARGS)

fuzz-built: tested  ## The same on the compiled code: unguided, but most are faster (MINUTES=5)
	PYTHONPATH=tests $(BIN)/python tools/fuzz_built.py --minutes $(MINUTES) $(ARGS)

h2spec: tested  ## Conformance tests of HTTP/2 by h2spec, in the clear and by TLS; needs Go
	@command -v go >/dev/null || { echo "h2spec is built with Go, which is not installed" >&2; exit 1; }
	cd tools/h2spec && go build -mod=readonly -o ../../build/h2spec github.com/summerwind/h2spec/cmd/h2spec
	PYTHONPATH=. $(BIN)/python tools/h2spec/run.py build/h2spec

conformance: tested  ## Conformance tests of Connect and gRPC by their own runner; needs Go
	@command -v go >/dev/null || { echo "the runner is built with Go, which is not installed" >&2; exit 1; }
	cd tools/conformance && go build -mod=readonly -o ../../build/connectconformance $(RUNNER) || \
	  { echo "the runner cannot be built: is the Go module proxy out of reach?" >&2; exit 1; }
	PYTHONPATH=. $(BIN)/python tools/conformance/run.py build/connectconformance \
	  "$$(cd tools/conformance && go list -m -f '{{.Dir}}' connectrpc.com/conformance)"

bench: build  ## Measure a server that is already running (ARGS="--jobs 100000")
	$(BIN)/corvo bench $(ARGS)

bench-micro: build  ## Cost of each module on the way of a write, in ns (ARGS="--instructions http1")
	$(BIN)/python -m bench.micro $(ARGS)

compare: build  ## Corvo beside Redis and beanstalkd, ratios (ARGS="--rounds 5 --connections 64")
	$(BIN)/python -m bench.compare $(ARGS)

clean:  ## Remove everything that was built (the data directory stays)
	rm -rf .venv .venv-pure .venv-debug build dist *.egg-info sdk/python/build sdk/python/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
	find corvo -name '*.so' -delete
	rm -f *.so

# A compiler is looked for before anything is downloaded.
build/compiler: tools/build_needs.py
	@$(PYTHON) tools/build_needs.py compiler
	@mkdir -p build && touch $@

# A virtual environment with the build tools.
.PRECIOUS: %/tools
%/tools: pyproject.toml constraints.txt tools/build_needs.py
	@$(PYTHON) tools/build_needs.py venv
	$(PYTHON) -m venv $*
	$*/bin/$(PIP_INSTALL) $(BUILD_TOOLS)
	@touch $@

# The packages that Corvo runs with are downloaded, and this folder is linked, while the compilers run.
$(VENV)/built: build/compiler $(VENV)/tools $(SOURCES)
	@if ! [ $(VENV)/linked -nt $(VENV)/tools -a $(VENV)/linked -nt setup.py ]; then \
	  { CORVO_PURE=1 $(BIN)/$(PIP_INSTALL) --no-build-isolation --editable . && \
	    touch $(VENV)/linked; } & linking=$$!; fi; \
	$(BIN)/python setup.py --quiet build_ext --inplace; built=$$?; \
	wait $$linking && exit $$built
	@touch $@

# Everything but Corvo itself: what it runs with, and what tests and checks need.
%/developing: %/tools setup.py
	$*/bin/python -c "$$READ_DEPENDENCIES" | xargs $*/bin/$(PIP_INSTALL)
	@touch $@

define READ_DEPENDENCIES
import runpy, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*runpy.run_path("setup.py")["RUN_TIME"], *project["optional-dependencies"]["dev"], sep="\n")
endef
export READ_DEPENDENCIES

$(PURE)/built: $(PURE)/developing $(SOURCES)
	CORVO_PURE=1 $(PURE)/bin/$(PIP_INSTALL) --no-deps --no-build-isolation --force-reinstall .
	@touch $@

$(DEBUG)/built: build/compiler $(DEBUG)/developing $(SOURCES)
	CORVO_DEBUG=1 $(DEBUG)/bin/$(PIP_INSTALL) --no-deps --no-build-isolation --force-reinstall .
	@touch $@
