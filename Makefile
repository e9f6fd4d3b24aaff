# `make demo` and `make test` work from nothing but Python 3.11 and pip.
PYTHON ?= python3
BIN := .venv/bin
# A bare `torch` may be a CUDA build of several gigabytes: the tested CPU version goes first.
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: demo test check format bench peers clean

demo: .venv/.installed
	@$(BIN)/espalier pull smollm2
	@$(BIN)/python examples/main_job.py

test: .venv/.installed
	$(BIN)/espalier pull smollm2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m 'not alone'
	$(BIN)/python -m pytest -m alone

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_packaging.py

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.installed
	$(BIN)/espalier pull smollm2
	$(BIN)/python -m bench.step --json bench/out/step.json
	$(BIN)/python -m bench.step --http --json bench/out/http.json

peers: .venv/.installed
	$(BIN)/espalier pull smollm2
	$(BIN)/python -m bench.peers.setup

.venv/.installed: pyproject.toml constraints.txt $(wildcard kernels/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv kernels/*.so build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
