# Convoy. `make` builds the library and the command with a C11 compiler and nothing else; `make help` lists the rest.
CC ?= gcc
.DEFAULT_GOAL := all
PREFIX ?= /usr/local
SAN ?=
BUILD ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(findstring clang,$(CC)),-clang)
comma := ,

WARN := -Wall -Wextra -Wshadow -Werror
OPT := $(if $(SAN),-O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN),-O3 -g)
CFLAGS += -std=c11 -D_GNU_SOURCE $(WARN) $(OPT) -fPIC -fvisibility=hidden -pthread -Iinclude -MMD -MP -DCVY_BUILD
LDFLAGS += $(if $(SAN),-fsanitize=$(SAN)) -pthread
LDLIBS += -lm -ldl

# Every folder of the pipeline is one pattern; src/cpu/kernels/*.c are compiled once per instruction set.
SOURCES := $(wildcard src/*/*.c)
KERNELS := $(wildcard src/cpu/kernels/*.c)
ISAS := portable $(if $(filter x86_64,$(shell uname -m)),avx2 avx512)
FLAGS_portable := -DCVY_ISA_PORTABLE
FLAGS_avx2 := -DCVY_ISA_AVX2 -mavx2 -mfma
FLAGS_avx512 := -DCVY_ISA_AVX512 -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o) $(foreach i,$(ISAS),$(KERNELS:%.c=$(BUILD)/%.$i.o))
CLI := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cli/*.c))

# CUDA kernels travel inside the library as text: embed.c writes them as byte arrays.
CUDA_TEXTS := $(sort $(wildcard src/cuda/kernels/*.cu src/cuda/kernels/*.cuh))
OBJECTS += $(BUILD)/src/cuda/embedded.o
$(BUILD)/embed: src/cuda/kernels/embed.c
	@mkdir -p $(@D)
	$(CC) -std=c11 $(WARN) -O1 -o $@ $<
$(BUILD)/src/cuda/embedded.c: $(BUILD)/embed $(CUDA_TEXTS)
	@mkdir -p $(@D)
	$(BUILD)/embed $@ $(CUDA_TEXTS)
$(BUILD)/src/cuda/embedded.o: $(BUILD)/src/cuda/embedded.c
	$(CC) $(CFLAGS) -Isrc/cuda -c -o $@ $<

all: $(BUILD)/libconvoy.a $(BUILD)/libconvoy.so $(BUILD)/convoy

$(BUILD)/libconvoy.a: $(OBJECTS)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libconvoy.so: $(OBJECTS)
	$(CC) -shared -Wl,-soname,libconvoy.so.0 $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/convoy: $(CLI) $(BUILD)/libconvoy.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

define isa_rule
$(BUILD)/src/cpu/kernels/%.$(1).o: src/cpu/kernels/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(FLAGS_$(1)) -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

clean:
	rm -rf build build-*

.PHONY: all clean
-include $(OBJECTS:.o=.d) $(CLI:.o=.d)
