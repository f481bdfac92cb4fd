# Everything a developer or user runs. `make demo` and `make test` set up what they need.
PYTHON ?= python3
OUT ?= demo-out
SPARK_KILLS ?= 100
SINK_KILLS ?= 100
SEEDS ?= 1000
START ?= 0
MINUTES ?= 10
TARGETS ?=
BIN := .venv/bin

.PHONY: setup demo test simulate fuzz check format docs bench interop interop-smoke soak soak-spark lock clean

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml tests/golden_option/golden_option.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "SparrowMQ needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  -e . tests/golden_option
	@touch $@

demo: setup
	$(BIN)/sparrowmq demo --out $(OUT)

test: setup
	$(BIN)/python -m pytest -m "not interop"

# Faults under a virtual clock: some minutes. `make simulate SEEDS=100 START=5000` for others.
simulate: setup
	$(BIN)/python -m sparrowmq.simulation --seeds $(SEEDS) --start $(START)

# Apache RocketMQ from Maven Central as the peer; skipped with a reason without Java or Maven.
interop: setup
	$(BIN)/python -m pytest -m interop -rs tests/interop --ignore tests/interop/test_soak.py

# The part of it that continuous integration runs, about two minutes: the same answers, a store
# that moves, and two Java and two Python members of one group.
interop-smoke: setup
	$(BIN)/python -m pytest -m interop -rs tests/interop/test_same_answers.py \
	  tests/interop/test_store_exchange.py tests/interop/test_mixed_strategies.py \
	  -k "4.9.7 and (answer or stopped-ours-apache or AVG]) and not CIRCLE"

# A member cut off for minutes, a broker restarted under load: real processes in network
# namespaces; what needs the right to make them is skipped without it. About five minutes.
soak: setup
	$(BIN)/python -m pytest -m interop -rsP tests/interop/test_soak.py

# A query to Parquet and one from topic to topic, whose drivers, executors, Python workers and broker
# are killed at random moments, SPARK_KILLS and SINK_KILLS times; about half a minute each.
soak-spark: setup
	SPARK_KILLS=$(SPARK_KILLS) SINK_KILLS=$(SINK_KILLS) $(BIN)/python -m pytest -m interop -rsP \
	  tests/interop/test_spark_kills.py tests/interop/test_spark_sink_kills.py

# Inputs that break a decoder: MINUTES for each of TARGETS, which are all if none is named. An input
# that fails is kept in tests/fuzz/failures, which `make test` replays. Linux on x86-64 alone.
fuzz: .venv/fuzz-ready
	PYTHONPATH=tests/support $(BIN)/python -m fuzz $(TARGETS) --minutes $(MINUTES)

.venv/fuzz-ready: .venv/ready requirements-fuzz.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	@touch $@

check: setup
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/test_architecture.py

format: setup
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

# The documentation as a site, in build/site; a broken link or a missing page is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: setup
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The locks hold names, versions and hashes, no addresses.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links
lock:
	$(BIN)/python -m pip install --quiet uv
	$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock
	$(COMPILE) --group fuzz --output-file requirements-fuzz.lock

clean:
	rm -rf .venv .cache $(OUT)
