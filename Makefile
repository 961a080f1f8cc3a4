# The tasks of this repository. `make help` lists them.
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

# PREFIX, DESTDIR and VERSION of this command line are not for libbpf, which cargo builds with
# make, too.
MAKEOVERRIDES =

# Where rustup puts cargo, for shells that have not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

# A benchmark program of bench/. It finds the engine and memgauge by these variables.
BENCH := MEMGAUGE_QEMU=$(TARGET)/engine/memgauge-engine MEMGAUGE=$(TARGET)/release/memgauge \
	cargo run --release --manifest-path bench/Cargo.toml --target-dir $(TARGET)/bench --bin

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## install all that building, demo and tests need (Debian), check the Rust toolchain
	@./setup.sh test

setup-build setup-demo setup-test setup-dist:
	@./setup.sh $(@:setup-%=%)

engine: setup-build ## build the engine: the emulator with the recorder in it (target/engine)
	@engine/build $(TARGET)/engine

WEB := $(wildcard web/src/*.ts web/src/*.css web/src/sections/*.ts web/vendor/uplot/*)

web: setup-build web/dist/report.js ## bundle the front end of the HTML report

web/dist/report.js: web/build web/tsconfig.json $(WEB)
	@web/build

# A build without the front end is one without pages, and says so.
web-if-possible: setup-build
	@if command -v esbuild >/dev/null; then $(MAKE) --no-print-directory web; \
	else echo "web: no esbuild here: memgauge is built without pages" >&2; fi

build: setup-build engine web-if-possible ## build memgauge for use (target/release/memgauge)
	cargo build --release -p memgauge

bench-io: setup-test build ## cost of accounting I/O: paired runs (needs root; perf, nginx, wrk where there)
	@bench/io --memgauge $(TARGET)/release/memgauge $(BENCH_ARGS)

demo: setup-demo web-if-possible ## record sqlite3 at work and show the report
	@engine/build $(TARGET)/engine & \
	cargo build --profile quick -p memgauge; built=$$?; wait $$! && exit $$built
	@bench/demo $(TARGET)/quick/memgauge $(TARGET)/demo

test: setup-test engine web-if-possible ## run all tests
	tests/run

test-kernels: setup-test ## I/O accounting on Debian's kernel in an emulated machine (about 20 minutes)
	@tests/kernels/run $(KERNEL_ARGS)

lab: setup-build ## build the lab: an emulated computer whose processor has a PMU (target/lab)
	@lab/build $(TARGET)/lab

test-lab: setup-test lab ## the kernel's PMU driver, perf and memgauge in the lab (minutes)
	cargo build --workspace --bin memgauge --example command
	cargo build --manifest-path bench/Cargo.toml --target-dir $(TARGET)/bench --bin lab_records
	@lab/test $(TARGET)/debug $(KERNEL_ARGS)

test-long: setup-test build ## a fleet of 10 000 recordings, also read by Spark; the exact curve of 10^9 references on a cluster whose workers are killed; first findings of programs with known causes, and of libraries with published fixes; curves of running processes against real memory limits (an hour; root, swap or zram); goes on where it ended
	cargo build --release -p memgauge-fleet --example synthetic_fleet
	tests/long/fleet --memgauge $(TARGET)/release/memgauge --generator $(TARGET)/release/examples/synthetic_fleet --folder $(TARGET)/fleet $(FLEET_ARGS)
	MEMGAUGE=$(TARGET)/release/memgauge tests/long/spark $(TARGET)/spark "$$(ls -dt $(TARGET)/fleet/dataset-* | head -n 1)"
	folder=$$(MEMGAUGE_PYTHON_PROFILE=release python/build) && PYTHONPATH=$$folder $(TARGET)/test-packages/python/bin/python3 tests/long/large-trace $(TRACE_ARGS)
	tests/long/causes --memgauge $(TARGET)/release/memgauge --folder $(TARGET)/causes --machine all
	tests/long/real-programs --memgauge $(TARGET)/release/memgauge --folder $(TARGET)/real-programs
	tests/long/memory-size --memgauge $(TARGET)/release/memgauge --folder $(TARGET)/memory-size

bench: setup-test build ## speed against native, the engine alone and cachegrind
	@bench/run --memgauge $(TARGET)/release/memgauge $(BENCH_ARGS)

bench-stat: setup-test build ## cost of counter series and speed of import against perf; parser; addresses of the clock
	@bench/stat --memgauge $(TARGET)/release/memgauge $(BENCH_ARGS)
	@bench/import --memgauge $(TARGET)/release/memgauge
	$(BENCH) parse_speed
	$(BENCH) clock_replay

bench-stat-instructions: setup-test build ## cost of counter series in instructions, the same each time (an emulated machine; minutes)
	@tests/kernels/run --instructions "bench/stat --memgauge $(TARGET)/release/memgauge --no-ticks --commands 0 --rounds 4 --turns 40"

bench-bandwidth: setup-test build ## overflow traces: accuracy on real programs, codecs, speed of the chain
	cargo build --release -p memgauge-workloads
	@bench/bandwidth --memgauge $(TARGET)/release/memgauge $(BENCH_ARGS)
	@bench/bandwidth --memgauge $(TARGET)/release/memgauge --traces $(TARGET)/traces
	$(BENCH) trace_codecs -- $(TARGET)/traces/*.mg
	mkdir -p $(TARGET)/times
	$(BENCH) trace_codecs -- --dump $(TARGET)/times $(TARGET)/traces/*.mg
	$(BENCH) pco_codec -- $(TARGET)/times/*.times
	$(BENCH) bandwidth_speed

bench-losses: setup-test build ## corrected totals and their intervals on bursts and programs (keeps recordings in target/losses)
	cargo build --release --manifest-path bench/Cargo.toml --target-dir $(TARGET)/bench --bin loss_replay
	@bench/losses --memgauge $(TARGET)/release/memgauge --replay $(TARGET)/bench/release/loss_replay --keep $(TARGET)/losses $(BENCH_ARGS)

bench-online: ## speed of the ring of on-line samples
	cargo run --release --manifest-path tests/ring-model/Cargo.toml --target-dir $(TARGET)/ring-model --example ring_speed

bench-serve: build ## ten minutes of random clients and targets of `memgauge serve`: memory and descriptors stay flat
	bench/serve-soak --memgauge $(TARGET)/release/memgauge $(BENCH_ARGS)

bench-page: build ## size, time and memory of the page of ten million samples and an hour of a series
	$(BENCH) large_recording -- $(TARGET)/large.mg
	bash -c 'time $(TARGET)/release/memgauge report $(TARGET)/large.mg --html -o $(TARGET)/large.html'
	ls -l $(TARGET)/large.html

bench-python: build ## speed of the Python module with ten million samples
	folder=$$(MEMGAUGE_PYTHON_PROFILE=release python/build) && PYTHONPATH=$$folder bench/python $(BENCH_ARGS)

bench-mrc: build ## speed of miss-rate curves, their errors, and how often bands hold
	$(BENCH) mrc_speed
	$(BENCH) mrc_coverage
	$(BENCH) mrc_streams -- $(TARGET)/streams >/dev/null
	$(BENCH) mrc_coverage -- 0 $(TARGET)/streams/*.raw

bench-figures: setup-test build ## what the first document's figures show, of the modelled machine (docs/experiments/bandwidth.md)
	cargo build --release -p memgauge-workloads
	cargo build --release --manifest-path bench/Cargo.toml --target-dir $(TARGET)/bench --bin trace_codecs
	@bench/figures --memgauge $(TARGET)/release/memgauge $(BENCH_ARGS)

experiments: setup-test build ## curves from sampled events against exact ones (docs/experiments)
	cargo build --release -p memgauge-workloads
	$(BENCH) mrc_experiment -- $(TARGET)/release/memgauge-workloads docs/experiments >/dev/null

lint: setup-test web-if-possible ## structure, paths in the documents, formatting, clippy, documentation
	tests/structure
	tests/documents
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo check -q --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)/fuzz
	cargo check -q --manifest-path bench/Cargo.toml --target-dir $(TARGET)/bench
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

guide: ## the documents as a site (target/guide); builds mdBook where it is not installed
	command -v mdbook >/dev/null || test -x $(TARGET)/tools/bin/mdbook || \
		cargo install --locked --root $(TARGET)/tools mdbook
	PATH="$(PATH):$(TARGET)/tools/bin" mdbook build docs --dest-dir $(TARGET)/guide

install: build ## install below PREFIX (/usr/local)
	cargo build --release -p memgauge-capi
	dist/stage $(TARGET)/release/memgauge $(TARGET)/release/libmemgauge.so $(DESTDIR)$(PREFIX) $(PREFIX)

dist: setup-build engine web-if-possible ## packages that run on any x86-64 Linux (target/dist)
	dist/build $(VERSION)

test-dist: setup-dist dist ## install, use and remove the packages in clean root file systems (root)
	dist/try

clean: ## remove everything built
	cargo clean

.PHONY: help web web-if-possible setup setup-build setup-demo setup-test engine build demo test test-long test-kernels lab test-lab bench bench-bandwidth bench-figures bench-losses bench-io bench-mrc bench-online bench-page bench-python bench-serve bench-stat bench-stat-instructions experiments lint guide install dist test-dist clean
