"""same_code.py OLD NEW [CHAIN ...]: do two source trees launch the same machine code on a Hopper GPU?

This needs no GPU: NVRTC compiles for sm_90a, and the driver is a stand-in that records every launch. Build both trees
first (`make all build/test/standin/libcuda.so.1`). For each chain (by default blocks A, B and C) in fp32, tf32
and bf16, the launches of a first run are compared in order: source file, registers, code and constants, grid, block,
shared memory and attributes. The first ones prepare parameters. Names of kernels are not compared, because they end in
a digest of the text. Kernels that are compiled for other layouts of the tensors are compared afterwards. Every
difference is printed; if there is one, the exit status is 1.

CVY_NVRTC_LIB names the NVRTC; by default it is that of this interpreter's PyTorch.
"""

import hashlib
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

WAYS = {"fp32": ["--dtype", "fp32"], "tf32": ["--precision", "tf32"], "bf16": ["--dtype", "bf16"]}
# Sections of a kernel: its code, arguments, literals and tables. Others list constants that no instruction reads.
COMPARED = (".text.", ".nv.constant0.", ".nv.constant2.", ".nv.constant3", ".nv.shared.")
# The kernel's PTX, which says which global constants are read; .nv.global.init has every one of the source.
PTX = ".nv_debug_ptx_txt"
DECLARED = re.compile(r"^(?:\.visible )?\.global ([^;=]*?)([\w$]+)(\[\d*\])?( = [^;]*)?;", re.M)
NO_BITS, REGISTERS = 8, 0x00082F04  # a section without bytes in the file; the record of a kernel's registers


def find_nvrtc():
    if "CVY_NVRTC_LIB" in os.environ:
        return os.environ["CVY_NVRTC_LIB"]
    found = [p for folder in map(Path, sys.path) for p in folder.glob("nvidia/*/lib/libnvrtc.so.1[23]")]
    return str(found[0]) if found else sys.exit("same_code: no NVRTC; CVY_NVRTC_LIB names one")


def sections(elf):
    """(name, size, bytes) of each section of a 64-bit ELF file."""
    start, size, count, names = *struct.unpack_from("<Q", elf, 40), *struct.unpack_from("<3H", elf, 58)
    heads = [struct.unpack_from("<2I4Q2I2Q", elf, start + i * size) for i in range(count)]
    at = heads[names][4]
    for name, kind, _, _, offset, size, *_ in heads:
        text = elf[at + name : elf.index(b"\0", at + name)].decode()
        yield text, size, b"" if kind == NO_BITS else elf[offset : offset + size]


def read_globals(ptx):
    """The declarations, without names, of the globals that an instruction names."""
    code = DECLARED.sub("", ptx)
    if re.search(r"^(\.\w+ )*\.global ", code, re.M):
        raise ValueError("a global is declared in a way that same_code does not know")
    used = set(re.findall(r"[\w$]+", code))
    return "".join(f"{kind}{size}{value};" for kind, name, size, value in DECLARED.findall(ptx) if name in used)


def describe(folder):
    """The source, registers and digest of a kernel that CVY_DUMP wrote: ENTRY.ARCHITECTURE."""
    source, registers, digest = next(folder.glob("*.cu")).name, 0, hashlib.sha256()
    found = list(sections((folder / "kernel.cubin").read_bytes()))
    ptx = next(data for name, _, data in found if name == PTX).decode().replace("\0", "\n")
    digest.update(read_globals(ptx).encode())
    for name, size, data in found:
        if name == ".nv.info":  # records of 12 bytes: what, symbol, number
            registers = next(n for what, _, n in struct.iter_unpack("<3I", data) if what == REGISTERS)
        if name.startswith(COMPARED):
            digest.update(f"{name.removesuffix(folder.stem)} {size}".encode() + data)
    return f"{source} {registers} registers, code {digest.hexdigest()[:16]}"


def observe(tree, recorder, chain, options):
    """What a first run launches, a line each, and what else was compiled."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        env = os.environ | {
            "CVY_CACHE": "off",
            "CVY_CUDA_LIB": str(recorder),
            "CVY_DUMP": str(folder / "dump"),
            "RECORDER_STANDIN": str(tree / "build/test/standin/libcuda.so.1"),
            "RECORDER_SIZES": str(folder / "sizes"),
            "RECORDER_LOG": str(folder / "log"),
        }
        call = [tree / "build/convoy", "plan", chain, "--device", "cuda", *options]
        subprocess.run(call, env=env, check=True, stdout=subprocess.DEVNULL)
        codes = {d.stem: describe(d) for d in (folder / "dump").iterdir()}
        (folder / "sizes").write_text("".join(f"{name} 8\n" for name in codes))  # 8 bytes of the first argument
        call[1:3] = ["run", chain, "--seed", "1", "--output", "/dev/null"]
        subprocess.run(call, env=env, check=True, stdout=subprocess.DEVNULL)
        launches, launched = [], set()
        for line in (folder / "log").read_text().splitlines():
            kind, name, *rest = line.split(" stream ")[0].split()
            if kind == "launch":
                launched.add(name)
                launches.append(f"{codes[name]}, launched as {' '.join(rest)}")
        return launches, Counter(code for name, code in codes.items() if name not in launched)


def compare(title, old, new):
    (launches, others), (launches_now, others_now) = old, new
    same = launches == launches_now and others == others_now
    kernels = f"{len(launches_now)} launches, {sum(others_now.values())} other kernels"
    print(f"{title}: {kernels}: {'the same' if same else 'DIFFERENT'}", flush=True)
    for i in range(max(len(launches), len(launches_now))):
        pair = launches[i : i + 1], launches_now[i : i + 1]
        if pair[0] != pair[1]:
            print(f"  launch {i + 1}\n    old {''.join(pair[0])}\n    new {''.join(pair[1])}")
    for word, only in ("old", others - others_now), ("new", others_now - others):
        for code in only.elements():
            print(f"  only {word}: {code}")
    return same


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    old, new = (Path(p).resolve() for p in sys.argv[1:3])
    os.environ["CVY_NVRTC_LIB"] = find_nvrtc()
    same = True
    with tempfile.TemporaryDirectory() as folder:
        recorder = Path(folder) / "librecorder.so"
        source = new / "test/eject/recorder.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", recorder, source, "-ldl"], check=True)
        for chain in sys.argv[3:] or ["A", "B", "C"]:
            for way, options in WAYS.items():
                seen = [observe(tree, recorder, chain, options) for tree in (old, new)]
                same &= compare(f"{chain} {way}", *seen)
    sys.exit(not same)


if __name__ == "__main__":
    main()
