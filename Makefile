# `make demo` and `make test` work from nothing but Python 3.11 and pip.
PYTHON ?= python3
BIN := .venv/bin
# A bare `torch` may be a CUDA build of several gigabytes: the tested CPU version goes first.
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: demo test check format bench soak peers sanitize emulate clean

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

# Ten minutes of traffic, kills and hostile input; the tests have a minute of the same.
soak: .venv/.installed
	$(BIN)/python -m bench.soak --seconds 600 --json bench/out/soak.json

# The tests of the native code on a build that stops at the first error of memory or meaning.
SANITIZED := build/sanitized/_cpu.abi3.so build/sanitized/_core.abi3.so
build/sanitized/_cpu.abi3.so: $(wildcard kernels/csrc/*)
build/sanitized/_core.abi3.so: $(wildcard radix/csrc/*)
$(SANITIZED): .venv/.installed
	mkdir -p $(@D)
	g++ -std=c++20 -O1 -g -ffp-contract=off -fno-math-errno -fPIC -shared -pthread \
	    -fsanitize=address,undefined -fno-sanitize-recover=all -DPy_LIMITED_API=0x030B0000 \
	    -I$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') \
	    $(filter %.cpp,$^) -o $@

SANITIZER := LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0 $(BIN)/python tests/sanitized.py
# Python's own allocator would hide what the radix tree's core uses after it has been freed.
sanitize: $(SANITIZED)
	$(SANITIZER) espalier.kernels._cpu build/sanitized/_cpu.abi3.so -q \
	    tests/kernels tests/runtime/test_native_sampler.py tests/runtime/test_native_invariance.py
	PYTHONMALLOC=malloc $(SANITIZER) espalier.radix._core build/sanitized/_core.abi3.so -q tests/radix

# The AVX-512 kernels on a processor without: SIMDe computes their instructions in AVX2's. GCC 12
# breaks down over vectors of 64 bytes without -fno-tree-sra.
EMULATED := build/emulated/_cpu.abi3.so
$(EMULATED): $(wildcard kernels/csrc/* tests/emulation/*) .venv/.installed
	@echo '#include <simde/x86/avx512.h>' | g++ -E -x c++ -o /dev/null - 2>/dev/null || \
	    { echo "make emulate needs SIMDe's headers (Debian, Ubuntu: libsimde-dev)" >&2; exit 1; }
	mkdir -p $(@D)
	g++ -std=c++20 -O2 -ffp-contract=off -fno-math-errno -fPIC -shared -pthread \
	    -mavx2 -mfma -mf16c -fno-tree-sra -Wno-psabi -include tests/emulation/avx512.h \
	    -DPy_LIMITED_API=0x030B0000 \
	    -I$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') \
	    kernels/csrc/*.cpp -o $@

emulate: $(EMULATED)
	$(BIN)/python tests/sanitized.py espalier.kernels._cpu $(EMULATED) -q \
	    tests/kernels tests/runtime/test_native_sampler.py tests/runtime/test_native_invariance.py

peers: .venv/.installed
	$(BIN)/espalier pull smollm2
	$(BIN)/python -m bench.peers.setup

.venv/.installed: pyproject.toml constraints.txt $(wildcard kernels/csrc/* radix/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv kernels/*.so radix/*.so build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
