# All commands of developers and users; each target sets up what it needs. `make help` lists them.
PYTHON ?= python3
export OUT ?= demo-out
SPARK_KILLS ?= 100
SINK_KILLS ?= 100
SEEDS ?= 1000
START ?= 0
ROWS ?=
SHARE ?= 1
SECONDS ?= 600
TARGETS ?=
COVERAGE_FLOOR ?= 92
VENV ?= .venv
BIN := $(VENV)/bin
PYTHONS ?= 3.11 3.12 3.13 3.14
# Tests start hundreds of processes: modules are compiled once for all of them.
unexport PYTHONDONTWRITEBYTECODE

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help setup demo test long planted test-pythons coverage simulate fuzz check format generate docs screens speedups bench bench-compare gate interop interop-clients interop-suite interop-peers interop-smoke soak soak-spark lock try-wheel audit sbom clean

setup: $(VENV)/ready $(VENV)/speedups ## make .venv with everything that the targets need

# uv needs a third of pip's time. It does not read pip's settings, so it gets pip's index, and where
# uv or a package index fails it, pip installs.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INDEX = $$($(BIN)/python -m pip config list | sed -n "s/.*[.]index-url='\(.*\)'/\1/p" | head -1)
UV = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(INDEX)}" VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet
install = $(UV) $(1) || $(PIP) $(1)

$(VENV)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "SparrowMQ needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

$(VENV)/uv: requirements-uv.lock | $(VENV)/python
	@$(PIP) --require-hashes -r requirements-uv.lock || echo "uv cannot be had: pip installs"
	@touch $@

# The demo's part of `.venv`: without the tools of tests and documentation.
$(VENV)/demo: requirements-demo.lock pyproject.toml | $(VENV)/uv
	@echo "installing into $(VENV) by requirements-demo.lock"
	@$(call install,--require-hashes -r requirements-demo.lock)
	@$(call install,--no-deps --no-build-isolation -e .)
	@touch $@

$(VENV)/ready: requirements.lock pyproject.toml tests/golden_option/golden_option.py | $(VENV)/uv
	@echo "installing into $(VENV) by requirements.lock"
	@$(call install,--require-hashes -r requirements.lock)
	@$(call install,--no-deps --no-build-isolation -e . tests/golden_option)
	@touch $@

# The extension in C is optional: without a compiler, setup goes on without it.
INSTALL_SPEEDUPS := $(PIP) --no-deps --no-build-isolation ./speedups
$(VENV)/speedups: $(VENV)/ready speedups/sparrowmq_speedups.c speedups/setup.py speedups/pyproject.toml
	@$(INSTALL_SPEEDUPS) >/dev/null 2>&1 || echo "The optional extension in C is left out: it needs" \
	  "a C compiler and Python's headers. \`make speedups\` shows what is missing."
	@touch $@

demo: $(VENV)/demo ## run the main job on 336,776 flights; the report is demo-out/report.html
	$(BIN)/sparrowmq demo --out "$$OUT"

# Tests wait more than they compute, so by more workers than cores, in a new order; Spark's by two
# of them: JVMs starve each other.
# ORDER="-p no:randomly" keeps the order of the files, ORDER=--randomly-seed=4711 repeats another.
WORKERS ?= -n 5
ORDER ?=
test: setup $(VENV)/spark-classes.jsa ## run the tests, except those of interop, long and planted
	$(BIN)/python -m pytest -m "not interop and not long and not planted" --dist loadgroup $(WORKERS) $(ORDER)

# Left out of `make test`, run by continuous integration and the gate: each takes seven seconds of the
# processor and more.
long: setup $(VENV)/spark-classes.jsa ## run the tests that compute longest: seeds, power cuts, jobs of Spark, pages in a browser, the demo, the site
	$(BIN)/python -m pytest -m long --dist loadgroup $(WORKERS) $(ORDER)

# Left out of `make test`, run by continuous integration and the gate: proofs of the proofs.
planted: setup ## plant mistakes, each of which the simulation or a test must find
	$(BIN)/python -m pytest -m planted $(WORKERS) $(ORDER)

# With it each JVM of Spark that the tests start takes half the processor time to start.
$(VENV)/spark-classes.jsa: $(VENV)/ready
	@$(BIN)/python tests/support/class_archive.py

# Each in an environment of its own, by the same lock. uv finds the Pythons; `uv python install 3.14`
# fetches one. Outside continuous integration: a quarter of an hour for each.
test-pythons: $(VENV)/uv ## run the tests with each of PYTHONS="3.11 3.12 3.13 3.14"
	@failed=; for each in $(PYTHONS); do \
	  found=$$($(BIN)/uv python find --system $$each) && \
	  $(MAKE) test VENV=.cache/pythons/$$each PYTHON="$$found" || failed="$$failed $$each"; \
	done; [ -z "$$failed" ] || { echo "tests failed, or no such Python:$$failed"; exit 1; }

# Half as slow again as `make test long`. What processes that are killed have run is not counted.
coverage: setup ## run the tests, list the lines and branches that they miss, and fail below the floor
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -m "not interop and not planted" -p no:randomly
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under $(COVERAGE_FLOOR)

# Faults under a virtual clock: some minutes. `make simulate SEEDS=100 START=5000` for others.
simulate: setup ## run the simulation of faults under a virtual clock: SEEDS=1000 START=0
	$(BIN)/python -m sparrowmq.simulation --seeds $(SEEDS) --start $(START)

# Apache RocketMQ from Maven Central as the peer; skipped with a reason without Java or Maven.
# In a random order the brokers of each version would start again and again.
INTEROP := $(BIN)/python -m pytest -m interop -rs -p no:randomly
SUITE := tests/interop/test_apache_suite.py
CLIENTS := $(patsubst %,tests/interop/test_%.py,go_client cpp_client js_client mqadmin_commands)
interop: interop-clients interop-suite interop-peers ## run the tests against Apache RocketMQ from Maven Central (Java 17, Maven)

interop-peers: setup ## the part of interop without foreign clients and Apache's own tests
	$(INTEROP) tests/interop $(patsubst %,--ignore %,tests/interop/test_soak.py $(SUITE) $(CLIENTS))

# Foreign clients and tools, which need Go and Node beside it: a quarter of an hour.
interop-clients: setup ## the part of interop with Apache's Go and C++ clients, ali-ons and mqadmin
	$(INTEROP) $(CLIENTS)

# Unchanged, on brokers of ours and of Apache's: half an hour, in which it mostly waits.
interop-suite: setup ## the part of interop with Apache's own integration tests
	$(INTEROP) $(SUITE)

# The part of it that continuous integration runs, about two minutes: the same answers, a store
# that moves, and two Java and two Python members of one group.
interop-smoke: setup ## two minutes of interop
	$(BIN)/python -m pytest -m interop -rs tests/interop/test_same_answers.py \
	  tests/interop/test_store_exchange.py tests/interop/test_mixed_strategies.py \
	  -k "4.9.7 and (answer or stopped-ours-apache or AVG]) and not CIRCLE"

# Eight faults of networks and processes, each with two groups, and a broker restarted under load:
# real processes in network namespaces; what needs the right to make them is skipped without it.
# About eleven minutes, in which it mostly waits.
soak: setup ## cut, delay and stop members and servers for minutes, in network namespaces
	$(BIN)/python -m pytest -m interop -rsP tests/interop/test_soak.py

# A query to Parquet and one from topic to topic, whose drivers, executors, Python workers and broker
# are killed at random moments, SPARK_KILLS and SINK_KILLS times, several in each run of half a
# minute. Each run says what is sent, twice and lost so far.
soak-spark: setup ## kill Spark SPARK_KILLS and SINK_KILLS times while it reads and writes
	SPARK_KILLS=$(SPARK_KILLS) SINK_KILLS=$(SINK_KILLS) $(BIN)/python -m pytest -m interop -rs -s \
	  tests/interop/test_spark_kills.py tests/interop/test_spark_sink_kills.py

# Inputs that break a decoder: SECONDS of the processor for each of TARGETS, which are all if none
# is named. An input that fails is kept in tests/fuzz/failures, which `make test` replays. Linux on
# x86-64 alone.
fuzz: $(VENV)/fuzz-ready ## search for inputs that break a decoder: TARGETS=... SECONDS=600
	PYTHONPATH=tests/support $(BIN)/python -m fuzz $(TARGETS) --seconds $(SECONDS)

$(VENV)/fuzz-ready: $(VENV)/ready requirements-fuzz.lock
	@$(call install,--require-hashes -r requirements-fuzz.lock)
	@touch $@

# Over four hours on two cores, by the times of its rows; `decoders` and `simulation` may end later. What passed on this commit is not run again.
gate: setup ## run every proof of docs/explanation/reliability.md and write its figure: ROWS="kills frames" SHARE=1
	PYTHONPATH=tests/support $(BIN)/python -m gate $(ROWS) --share $(SHARE)
	$(BIN)/python tools/generate.py

check: setup ## check format, lint, types and architecture
	$(BIN)/ruff format --check src tests benchmarks tools speedups
	$(BIN)/ruff check src tests benchmarks tools speedups
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_generated.py

format: setup ## format, and apply ruff's fixes
	$(BIN)/ruff format src tests benchmarks tools speedups
	$(BIN)/ruff check --fix src tests benchmarks tools speedups

# The synchronous face, the types of settings, and their page.
generate: setup ## make the generated files from their sources
	$(BIN)/python tools/generate.py

# The documentation as a site, in build/site; a broken link or a missing page is an error.
docs: setup ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore::SyntaxWarning $(BIN)/mkdocs build --strict --quiet

# `make setup` does so too, but says less and goes on without it.
speedups: $(VENV)/ready ## build the extension in C and install it into .venv, or print why this fails
	$(INSTALL_SPEEDUPS)

# Without the extension in C: `PYTHONPATH=benchmarks/plain make bench`.
bench: setup ## run all benchmarks; write the comparison with Apache to benchmarks/results
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# What a change did: `make bench-compare OLD=before.json`, where NEW is the last `make bench`.
OLD ?=
NEW ?= benchmarks/results/apache.json
bench-compare: setup ## show two results of the comparison with Apache side by side: OLD=file NEW=file
	$(BIN)/python benchmarks/against_apache.py --compare $(OLD) $(NEW)

# Takes dependencies from the package index, as users do; about a minute.
try-wheel: setup ## build the wheel, install it into a fresh environment, and use it
	$(BIN)/python tools/try_wheel.py

# Licences by what is installed; then known weaknesses, for which it asks a service.
audit: setup ## check the licences of the dependencies, and their known weaknesses
	$(BIN)/python tools/audit.py
	"$(PYTHON)" -m venv .cache/audit
	.cache/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.cache/audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock

# Of the same lock and libraries the same bytes.
sbom: setup ## write dist/sbom.json, the bill of materials by requirements.lock (CycloneDX)
	$(BIN)/python tools/sbom.py

# From the running product, in about three minutes.
screens: setup ## take the pictures of the live page for the docs (Chromium)
	PYTHONPATH=tests/support $(BIN)/python -m live_page_screens

# The locks hold names, versions and hashes, no addresses; a checkout builds `speedups` itself.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links
lock: $(VENV)/uv ## resolve the dependencies anew
	$(COMPILE) pyproject.toml --extra dev --output-file requirements.lock
	$(COMPILE) pyproject.toml --extra demo --extra java --group checkout \
	  --constraint requirements.lock --output-file requirements-demo.lock
	$(COMPILE) --group uv --output-file requirements-uv.lock
	$(COMPILE) --group fuzz --output-file requirements-fuzz.lock

clean: ## remove .venv, .cache and the demo's output
	rm -rf .venv .cache "$$OUT"
