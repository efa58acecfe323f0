.DEFAULT_GOAL := help
PY := .venv/bin/python
GOLDEN ?= tests/golden
WORKERS ?= 4
GOLDEN_TESTS := tests/tidb tests/mounter tests/codec tests/dispatcher $(wildcard tests/filter)

help: ## what one can do here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with everything pinned, and compile the kernels
	@tools/setup

demo: setup ## the main path, live: TiKV -> capture -> Spark -> Kafka -> Spark -> Delta, and the proof; TARGET=mariadb CAPTURES=3
	@$(PY) -m tools.demo $(if $(TARGET),--target '$(TARGET)') $(if $(CAPTURES),--captures '$(CAPTURES)')

# Bytecode is always written: else each of the processes would compile all test files (`tests/fixtures/rewritten.py`).
test: setup ## every test, with the real services; in one process instead of four: make test WORKERS=0
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --filler $(PYTEST_ARGS)

quick: setup ## the tests that need no service
	@$(PY) -m pytest -m "not integration" $(PYTEST_ARGS)

check: setup ## format, lint, types, imports, spelling; what one of them finds does not hide what the others find
	@$(MAKE) --no-print-directory --keep-going --output-sync --jobs $(CHECKS)

# Types first: they take longest, with one processor.
CHECKS := types format lint imports spelling

types:
	@$(PY) -m mypy

format:
	@$(PY) -m ruff format --check .

lint:
	@$(PY) -m ruff check .

imports:
	@.venv/bin/lint-imports

spelling:
	@.venv/bin/codespell

golden: setup ## rows, keys, DDL and filters recorded from TiDB: make golden GOLDEN=DIR, default tests/golden
	@$(PY) -m pytest $(GOLDEN_TESTS) --golden $(GOLDEN) $(PYTEST_ARGS)

fuzz: setup ## a million damaged rows, definitions and messages of each protocol; 200,000 damaged DDL jobs
	@$(PY) -m tests.tidb.row_fuzz $(FUZZ_ARGS)
	@$(PY) -m tests.codec.message_fuzz
	@$(PY) -m tests.tidb.definition_fuzz
	@$(PY) -m tests.mounter.job_fuzz

kills: setup ## the kill test in its long form: 30 kills
	@$(PY) -m pytest tests/integration/test_kills.py --kills 30 $(PYTEST_ARGS)

target-servers: setup ## the tests of databases as targets, at a MySQL or TiDB that runs: make target-servers SERVER=127.0.0.1:3306
	@TIDEGATE_TEST_MYSQL=$(SERVER) $(PY) -m pytest -n 0 tests/consumer tests/cli/test_quarantine.py $(PYTEST_ARGS)

bank: setup ## a bank into Delta, Iceberg and MariaDB, consumer and producer killed 50 times: make bank N=20
	@$(PY) -m pytest -s tests/consumer/test_bank.py --bank $(or $(N),50) $(PYTEST_ARGS)

logs: setup ## recorded logs into MariaDB, compared with what SQL saw at each of their snapshots
	@$(PY) -m pytest tests/consumer/mysql/test_target.py -k recorded_log --every 1 $(PYTEST_ARGS)

recuts: setup ## spans and rules of a changefeed changed under load, 50 times, with kills: make recuts N=10
	@$(PY) -m pytest -s tests/integration/test_recuts.py --recuts $(or $(N),50) $(PYTEST_ARGS)

hangs: setup ## every process stopped, one after another, with the default patience: 12 in all
	@$(PY) -m pytest tests/integration/test_hangs.py --hangs 12 $(PYTEST_ARGS)

giant: setup ## one transaction of 2 GB through the whole product, killed in its midst: make giant MB=200
	@$(PY) -m pytest -s tests/integration/test_giant.py --giant $(or $(MB),2048) $(PYTEST_ARGS)

auto-cdc: setup ## the example of Spark's AUTO CDC, compared with the source after each of seven runs
	@tools/services fetch pipelines
	@$(PY) -m pytest -s tests/integration/test_auto_cdc.py --auto-cdc $(PYTEST_ARGS)

cluster: setup ## a Spark cluster under another user, its parts killed and stopped at 5,000 rows/s: make cluster N=8
	@$(PY) -m pytest -s tests/integration/test_spark_cluster.py --cluster-kills $(or $(N),12) $(PYTEST_ARGS)

chaos: setup ## regions and stores in trouble under load, 300 seeds: make chaos SEEDS=20 FEEDS=2
	@$(PY) -m pytest -s tests/integration/test_chaos.py --seeds $(or $(SEEDS),300) --feed-seeds $(or $(FEEDS),20) --chaos-seconds 6 $(PYTEST_ARGS)

explore: setup ## every order of events in which captures take a changefeed over or share it: 9 million states, about 20 minutes
	@$(PY) -m tests.control.takeover
	@$(PY) -m tests.control.sharing

simulate: setup ## captures that share a changefeed, in virtual time with random faults: make simulate SEEDS=1000 SCENARIO=zombie
	@$(PY) -m tidegate simulate --scenario $(or $(SCENARIO),storm) --seeds $(or $(SEEDS),10000)

captures: setup ## three captures share a changefeed: killed, stopped, cut off, moved; what it costs: make captures SECONDS=3600
	@$(PY) -m pytest -s tests/integration/test_captures.py --captures-for $(or $(SECONDS),600) $(PYTEST_ARGS)

guards: setup ## each guard of docs/guarantees.md removed in turn, and the tests that must fail then: make guards ONLY="coverage attempt"
	@$(PY) -m tools.guards $(foreach name,$(ONLY),--only $(name))

isolation: setup ## histories of concurrent transactions, checked for snapshot isolation: make isolation SEEDS=20000
	@$(PY) -m pytest -s tests/tikv/test_isolation.py --isolation-seeds $(or $(SEEDS),20000) --timeout 86400 $(PYTEST_ARGS)

cuts: setup ## files of a running event store cut, lost and mixed, 20 rounds: make cuts ROUNDS=100
	@$(PY) -m pytest tests/eventstore/test_power_loss.py --cuts $(or $(ROUNDS),20) --timeout 86400 $(PYTEST_ARGS)

disks: setup ## a disk of 64 MB, filled and freed under a changefeed, 20 times: make disks ROUNDS=100
	@$(PY) -m pytest tests/server/test_full_disk.py --disk-rounds $(or $(ROUNDS),20) --timeout 86400 $(PYTEST_ARGS)

bench: setup ## parts a to e of benchmarks/README.md, measured on this machine; BENCH_ARGS=--smoke only tries that it runs
	@$(PY) -m benchmarks.run $(BENCH_ARGS)

docs: setup ## write the pages of docs/ that are made from code and recorded vectors
	@$(PY) -m tools.reference
	@$(PY) -m tools.machines
	@$(PY) -m tools.format_pages
	@$(PY) -m tools.ddl_page
	@$(PY) -m tools.modify_page
	@$(PY) -m tools.guards --write

lock: ## resolve pyproject.toml again into the lock files
	@tools/lock

clean: ## remove what was made, but not what was fetched
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help setup demo test quick check $(CHECKS) golden fuzz kills bank logs recuts explore simulate captures guards hangs giant auto-cdc cluster chaos isolation cuts disks bench docs lock clean
