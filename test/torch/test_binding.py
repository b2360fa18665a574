"""The binding says what the header says: every function, struct, enum and constant, and nothing else."""

import ctypes as C
import re
import subprocess
import sys
from pathlib import Path

from convoy import binding

HEADER = (Path(__file__).resolve().parents[2] / "include" / "convoy.h").read_text()
TEXT = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)

SCALARS = {
    "int32_t": C.c_int32, "uint32_t": C.c_uint32, "int64_t": C.c_int64, "uint64_t": C.c_uint64, "size_t": C.c_size_t,
    "double": C.c_double, "cvy_value": C.c_int32, "char": C.c_char, "void": None,
}  # fmt: skip
STRUCTS = {"cvy_attr", "cvy_call", "cvy_tensor", "cvy_options", "cvy_cost", "cvy_buffer", "cvy_prepared", "cvy_memory",
           "cvy_word", "cvy_copy", "cvy_repeat"}  # fmt: skip
HANDLES = {"cvy_graph", "cvy_plan"}


def ctype(text):
    """The ctypes type of a declaration such as "const int64_t *strides" or "double value[CVY_MAX_RANK]"."""
    array = re.search(r"\[(\w+)\]$", text)
    text = re.sub(r"\[\w+\]$", "", text)
    stars = text.count("*")
    base = next(word for word in re.findall(r"\w+", text) if word != "const")
    if base in binding.ENUMS:
        kind = C.c_int
    elif base in HANDLES:
        kind, stars = C.c_void_p, stars - 1
    elif base in STRUCTS:
        kind = getattr(binding, base)
    else:
        kind = SCALARS[base]
    if stars and base == "char":
        kind, stars = C.c_char_p, stars - 1
    elif stars and base == "void":
        kind, stars = C.c_void_p, stars - 1
    for _ in range(stars):
        kind = C.POINTER(kind)
    return kind, int(getattr(binding, array[1], None) or array[1]) if array else 0


def test_functions():
    declared = {}
    for result, name, arguments in re.findall(r"CVY_API ([\w* ]+?)(cvy_\w+)\(([^)]*)\)", TEXT):
        given = [] if arguments.strip() == "void" else [a.strip() for a in arguments.split(",")]
        kinds = [C.POINTER(kind) if count else kind for kind, count in map(ctype, given)]
        declared[name] = (None if result.strip() == "void" else ctype(result)[0], kinds)
    assert declared == binding.FUNCTIONS


def test_structs():
    found = re.findall(r"typedef struct (cvy_\w+) \{(.*?)\}", TEXT, flags=re.S)
    assert {name for name, _ in found} == STRUCTS
    for name, body in found:
        fields = []
        for line in body.split(";"):
            if line.strip():
                field = re.search(r"(\w+)(\[\w+\])?$", line.strip())[1]
                kind, count = ctype(line.strip())
                fields.append((field, kind * count if count else kind))
        assert fields == getattr(binding, name)._fields_, name


def test_enums():
    found = {}
    for name, body in re.findall(r"typedef enum (cvy_\w+) \{(.*?)\}", TEXT, flags=re.S):
        found[name] = {key: int(value) for key, value in re.findall(r"(\w+) = (\d+)", body)}
    assert found == binding.ENUMS


def test_constants():
    for name, value in re.findall(r"#define (CVY_\w+) +\(?(-?\d+|\"[^\"]*\")u?\)?", TEXT):
        assert getattr(binding, name) == (value.strip('"') if '"' in value else int(value)), name


def test_sizes_as_c_sees_them(tmp_path):
    source = tmp_path / "sizes.c"
    lines = "".join(f'printf("{s} %zu\\n", sizeof({s}));' for s in sorted(STRUCTS))
    source.write_text(f'#include <stdio.h>\n#include "convoy.h"\nint main(void) {{ {lines} return 0; }}\n')
    include = Path(__file__).resolve().parents[2] / "include"
    subprocess.run(["cc", f"-I{include}", "-o", tmp_path / "sizes", source], check=True)
    printed = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True).stdout
    sizes = dict(line.split() for line in printed.splitlines())
    assert sizes == {s: str(C.sizeof(getattr(binding, s))) for s in STRUCTS}


def test_import_leaves_torch_alone():
    code = "import sys, convoy; assert 'torch' not in sys.modules; assert 'conv2d' in convoy.operators()"
    subprocess.run([sys.executable, "-c", code], check=True)
