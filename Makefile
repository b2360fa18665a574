# Convoy. `make` builds the library and the command with a C11 compiler and nothing else; `make help` lists the rest.
PREFIX ?= /usr/local
comma := ,
# CROSS=aarch64-linux-gnu- builds for another machine, into a separate folder.
ifdef CROSS
CC := $(CROSS)gcc
AR := $(CROSS)ar
endif
STRIP := $(CROSS)strip
HOSTCC ?= $(if $(CROSS),cc,$(CC))
BUILD ?= build$(if $(CROSS),-$(firstword $(subst -, ,$(CROSS))))$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(findstring clang,$(CC)),-clang)
VERSION := $(shell sed -n 's/^.define CVY_VERSION *"\(.*\)"/\1/p' include/convoy.h)

Q := $(if $(V),,@)
say = @mkdir -p $(@D) && printf '  %-5s %s\n'
WARN := -Wall -Wextra -Wshadow -Wcast-qual -Werror
OPT := $(if $(SAN),-O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all,-O3 -g)
CFLAGS += -std=c11 -D_GNU_SOURCE $(WARN) $(OPT) -fPIC -fvisibility=hidden -pthread -Iinclude -MMD -MP -DCVY_BUILD
LDFLAGS += $(if $(SAN),-fsanitize=$(SAN)) -pthread
LDLIBS += -lm -ldl
MAKEFLAGS += --no-builtin-rules

# Every folder of the pipeline is one pattern; src/cpu/kernels/*.c are compiled once per instruction set.
SOURCES := $(wildcard src/*/*.c)
KERNELS := $(wildcard src/cpu/kernels/*.c)
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ISAS := portable $(if $(filter x86_64,$(MACHINE)),avx2 avx512) $(if $(filter aarch64,$(MACHINE)),neon)
FLAGS_portable := -DCVY_ISA_PORTABLE
FLAGS_neon := -DCVY_ISA_NEON
FLAGS_avx2 := -DCVY_ISA_AVX2 -mavx2 -mfma -mf16c
FLAGS_avx512 := -DCVY_ISA_AVX512 -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(foreach i,$(ISAS),$(KERNELS:%.c=$(BUILD)/%.$i.o)) \
    $(BUILD)/src/cuda/embedded.o
CLI := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cli/*.c))

all: $(BUILD)/libconvoy.a $(BUILD)/libconvoy.so $(BUILD)/convoy ## the library and the command (the default)

$(BUILD)/libconvoy.a: $(OBJECTS)
	$(say) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libconvoy.so: $(OBJECTS)
	$(say) LINK $@
	$(Q)$(CC) -shared -Wl,-soname,libconvoy.so.0 -Wl,-z,nodelete $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -o $@ $^ $(LDLIBS)
	@ln -sf libconvoy.so $@.0

$(BUILD)/convoy: $(CLI) $(BUILD)/libconvoy.a
	$(say) LINK $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c
	$(say) CC $<
	$(Q)$(CC) $(CFLAGS) -c -o $@ $<

# Fuzzers look for the way into the kernels, not inside them: instrumented, the kernels take minutes to compile.
# A kernel begins at a line of the caches, so that its speed does not depend on what else its file holds.
KERNEL_CFLAGS = -falign-functions=64 $(if $(findstring fuzzer,$(SAN)),$(filter-out -fsanitize=%,$(CFLAGS)),$(CFLAGS))
define isa_rule
$(BUILD)/src/cpu/kernels/%.$(1).o: src/cpu/kernels/%.c
	$$(say) CC '$$< ($(1))'
	$$(Q)$$(CC) $$(KERNEL_CFLAGS) $$(FLAGS_$(1)) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

# CUDA kernels travel inside the library as text: embed.c writes them as byte arrays.
CUDA_TEXTS := $(sort $(wildcard src/cuda/kernels/*.cu src/cuda/kernels/*.cuh))

$(BUILD)/embed: src/cuda/kernels/embed.c
	$(say) CC $<
	$(Q)$(HOSTCC) -std=c11 $(WARN) -O1 -o $@ $<

$(BUILD)/src/cuda/embedded.c: $(BUILD)/embed $(CUDA_TEXTS)
	$(say) EMBED 'src/cuda/kernels'
	$(Q)$(BUILD)/embed $@ $(CUDA_TEXTS)

$(BUILD)/src/cuda/embedded.o: $(BUILD)/src/cuda/embedded.c
	$(Q)$(CC) $(CFLAGS) -Isrc/cuda -c -o $@ $<

demo: ## build, then describe, plan, run and check three blocks
	@$(MAKE) --no-print-directory -s -j$$(nproc) $(BUILD)/convoy
	@$(BUILD)/convoy demo

# ---- tests: every file in test/unit, test/fuse and test/fault is one cmocka program -------------------------------
TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard test/unit/*.c test/fuse/*.c test/fault/*.c))
STANDINS := $(addprefix $(BUILD)/test/standin/,libcuda.so.1 libnvrtc.so.13)
EMULATORS := $(addprefix $(BUILD)/test/emulate/,libcuda.so.1 libnvrtc.so.13)
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
PROGRAMS := $(EXAMPLES) $(patsubst %.c,$(BUILD)/%,$(wildcard test/*.c test/gpu/*.c bench/labs/*.c))

test: ## set up and run all tests; the last line is the sum
	@test/run.sh
check-c: tests ## the C tests alone (also under SAN=..., CC=clang)
	@test/run-c.sh $(BUILD)
tests: $(TESTS) $(STANDINS) $(EMULATORS) $(EXAMPLES)

golden: $(BUILD)/test/unit/test_golden $(STANDINS) ## write test/golden again: plans as text, for review
	@$(BUILD)/test/unit/test_golden --write

# what tests share, in programs with and without cmocka
SUPPORT := $(BUILD)/test/libsupport.a
SUPPORT_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard test/support/*.c))
$(SUPPORT): $(SUPPORT_OBJECTS)
	$(say) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(TESTS): %: %.o $(filter-out %/main.o,$(CLI)) $(SUPPORT) $(BUILD)/libconvoy.a
	$(say) LINK $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

# Two libcuda without a GPU: one whose kernels do nothing, and one that runs them (test/emulate, never under sanitizers,
# which cannot follow its fibers).
STANDIN_FLAGS = $(filter-out -fvisibility=hidden -MMD -MP,$(CFLAGS)) -shared
$(BUILD)/test/standin/libcuda.so.1: $(addprefix test/standin/,cuda.c nothing.c)
$(BUILD)/test/standin/libnvrtc.so.13: test/standin/nvrtc.c
$(BUILD)/test/emulate/libcuda.so.1: test/standin/cuda.c $(addprefix test/emulate/,run.c calls.c fiber.c memory.c module.c product.c transfer.c)
$(BUILD)/test/emulate/libnvrtc.so.13: test/emulate/nvrtc.c
$(STANDINS): $(wildcard test/standin/*.h)
	$(say) CC $@
	$(Q)$(CC) $(STANDIN_FLAGS) $(LDFLAGS) -o $@ $(filter %.c,$^)
$(EMULATORS): $(wildcard test/standin/*.h test/emulate/*.h)
	$(say) CC $@
	$(Q)$(CC) $(filter-out -fsanitize% -fno-sanitize%,$(STANDIN_FLAGS)) -O3 -DEMULATE_DIR='"$(CURDIR)/test/emulate"' \
	    -o $@ $(filter %.c,$^) $(LDLIBS)

$(PROGRAMS): %: %.o $(SUPPORT) $(BUILD)/libconvoy.a
	$(say) LINK $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

gpu-test: all $(BUILD)/test/gpu/chains ## the tests that need a GPU (PARTS="chains bits ...": some of them)
	@BUILD=$(BUILD) test/gpu/prove.sh $(BUILD)/gpu-test $(PARTS)

# ---- fuzzing: clang's libFuzzer, in a separate build folder ------------------------------------------------
FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst %.c,build-fuzz/%,$(wildcard test/fuzz/fuzz_*.c))

fuzz: ## fuzz every target for FUZZ_SECONDS
	@$(MAKE) -s -j$$(nproc) CC=clang SAN=address,undefined,fuzzer-no-link BUILD=build-fuzz $(FUZZERS) >/dev/null
	@test/fuzz.sh build-fuzz $(FUZZ_SECONDS)

$(FUZZERS): %: %.o $(addprefix $(BUILD)/cli/,npy.o aside.o) $(BUILD)/libconvoy.a
	$(say) LINK $@
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

# ---- benchmarks: bench/suites and bench/modules measure, the page is drawn from bench/results ---------------------------------------------------
REPORT := PYTHONPATH=python python3 -m convoy_report
# The page, the tables, and the pictures of the page where there is a Chromium.
PAGES := $(REPORT) && $(REPORT) --update README.md doc/PERFORMANCE.md && { $(REPORT) --screenshots doc || :; }

BENCH_SECONDS ?= 1020# of measuring; installing the peers is extra

bench: ## every CPU library on the whole suite (20 minutes), the page and the tables; continues where it was interrupted
	@bench/suites/bench.sh --budget $(BENCH_SECONDS) $(BENCH) || [ $$? = 75 ]
	@$(PAGES)

# with the peers that are there: all of them, or those of the tests' environment
bench-smoke: all ## the suite at tiny sizes
	@rm -rf $(BUILD)/bench
	@CONVOY_LIBRARY=$(CURDIR)/$(BUILD)/libconvoy.so \
	    BENCH_PYTHON=$${BENCH_PYTHON:-$(firstword $(wildcard .venv-bench/bin/python .venv/bin/python))} bench/suites/bench.sh \
	    --suite smoke --fresh --patience 1 --repeats 3 --out $(BUILD)/bench/smoke.json
	@$(REPORT) --results $(BUILD)/bench -o $(BUILD)/bench/smoke.html

GPU_SUITES ?= full series sample# GPU_BENCH: more options of bench/suites/gpu.py; GPU_PYTHON: an interpreter with PyTorch

gpu-bench: all ## Convoy and PyTorch on this machine's GPU, the page and the tables; GPU_PYTHON, GPU_SUITES
	@for suite in $(GPU_SUITES); do \
	    CONVOY_LIBRARY=$(CURDIR)/$(BUILD)/libconvoy.so $${GPU_PYTHON:-python3} bench/suites/gpu.py --suite $$suite $(GPU_BENCH) || exit; \
	done
	@$(PAGES)

NEVER ?= --device cpu --threads 2# --device cuda; --fresh measures again what bench/results/never has; --only NAME

halves: tests $(BUILD)/test/gpu/chains ## random graphs in fp16 and bf16, on the CPU and emulated (an hour); HALF_GRAPHS
	@test/halves.sh $(BUILD) $(HALF_GRAPHS)

never-slower: all ## time every module of bench/modules/cases.py: none may be more than 5 % slower than eager PyTorch
	@CONVOY_LIBRARY=$(CURDIR)/$(BUILD)/libconvoy.so $(or $(GPU_PYTHON),$(firstword $(wildcard .venv/bin/python) python3)) \
	    bench/modules/never_slower.py $(NEVER)

# ---- housekeeping (the vector headers are tables, laid out by hand) ----------------------------------------------------------------------------------------
FORMATTED = $(filter-out src/cpu/simd%.h,$(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh'))

check-format: check-sizes ## check that every C and CUDA file is formatted, and that no function or file is too long
	@clang-format --dry-run -Werror $(FORMATTED)

check-sizes:
	@test/sizes.sh

format: ## format every C and CUDA file
	@clang-format -i $(FORMATTED)

check-statics: $(OBJECTS) ## check that threads share only the static variables that are listed with their guards
	@test/statics.sh $(BUILD)

check-exports: $(BUILD)/libconvoy.so ## check that the library exports exactly the header's symbols
	@nm -D --defined-only $< | awk '{ print $$3 }' | LC_ALL=C sort | diff test/exports.txt -

install: all ## install into DESTDIR and PREFIX: command, libraries, header, pkg-config and CMake files, manual page, completion
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin include lib/pkgconfig lib/cmake/convoy share/man/man1 \
	    share/bash-completion/completions share/zsh/site-functions)
	install -s --strip-program=$(STRIP) -m 755 $(BUILD)/convoy $(DESTDIR)$(PREFIX)/bin/
	install -m 644 include/convoy.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 $(BUILD)/libconvoy.a $(DESTDIR)$(PREFIX)/lib/
	$(STRIP) --strip-debug $(DESTDIR)$(PREFIX)/lib/libconvoy.a
	install -s --strip-program=$(STRIP) -m 755 $(BUILD)/libconvoy.so $(DESTDIR)$(PREFIX)/lib/libconvoy.so.$(VERSION)
	cd $(DESTDIR)$(PREFIX)/lib && ln -sf libconvoy.so.$(VERSION) libconvoy.so.0 && ln -sf libconvoy.so.0 libconvoy.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' convoy.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/convoy.pc
	for f in convoyConfig convoyConfigVersion; do \
	    sed 's|@VERSION@|$(VERSION)|' $$f.cmake.in > $(DESTDIR)$(PREFIX)/lib/cmake/convoy/$$f.cmake || exit; done
	install -m 644 doc/convoy.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	$(if $(CROSS),,$(BUILD)/convoy completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/convoy)
	$(if $(CROSS),,$(BUILD)/convoy completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_convoy)

WHEEL_PYTHON ?= $(firstword $(wildcard .venv/bin/python) python3)

wheel: ## the Python package, with the library inside, into dist (CROSS=aarch64-linux-gnu-: for another machine)
	@CONVOY_CROSS=$(CROSS) CONVOY_BUILD=$(BUILD) $(WHEEL_PYTHON) -m pip wheel -q --disable-pip-version-check --no-deps -w dist .

size: ## lines per folder
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.def' | xargs wc -l | sed '$$d; s|/[^/]*$$||' | awk '{ n[$$2] += $$1 } \
	    END { for (d in n) { printf "%7d  %s\n", n[d], d; all += n[d] } printf "%7d  ~ in all\n", all }' | sort -k2

clean: ## remove every build folder
	rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z-]*\)[a-z -]*:[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24
	@echo '  variants: SAN=address,undefined  SAN=thread  CC=clang  BUILD=folder  V=1  PREFIX=/usr/local'

.PHONY: all wheel demo test tests check-c golden gpu-test gpu-bench bench bench-smoke halves never-slower fuzz check-format check-sizes check-statics format check-exports install size clean help
-include $(OBJECTS:.o=.d) $(CLI:.o=.d) $(SUPPORT_OBJECTS:.o=.d) $(TESTS:=.d) $(PROGRAMS:=.d) $(FUZZERS:=.d)
