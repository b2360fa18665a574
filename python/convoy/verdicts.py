"""Results of effort="measure" on disk: a region's time in Convoy and in PyTorch.

An entry is a file of the library's own cache (src/util/cache.h says where that is, and the format): `convoy cache` lists,
verifies and clears them with the kernels. Its name is the digest of everything that the times depend on: the region, its
tensors, the settings, the device, the versions of PyTorch and of the library. It is used only if every byte is what was
written, for this very region. A broken cache only costs time: nothing here fails.
"""

import hashlib
import json
import math
import os
import stat
from pathlib import Path

import torch

from .binding import CVY_VERSION, lib

MAGIC = b"CVYCODE1"
LONGEST = 1 << 20  # bytes of an entry that is read


def directory():
    """Where the cache is, or None."""
    chosen, xdg, home = (os.environ.get(name, "") for name in ("CVY_CACHE", "XDG_CACHE_HOME", "HOME"))
    if chosen:
        return None if chosen == "off" else Path(chosen)
    if xdg.startswith("/"):
        return Path(xdg) / "convoy"
    return Path(home) / ".cache" / "convoy" if home.startswith("/") else None


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line for line in lines if line.startswith("model name")), ""), len(os.sched_getaffinity(0))


def machine(device):
    if device.type == "cpu":
        return processor()
    found = torch.cuda.get_device_properties(device)
    return found.name, found.major, found.minor, found.multi_processor_count, torch.version.cuda


def text_of(key, device):
    """Everything that the times of a region depend on."""
    library = os.stat(lib.path)
    return repr(("verdict 1", key, machine(device), torch.__version__, CVY_VERSION, library.st_size, library.st_mtime_ns))


def header(key, payload):
    return MAGIC + len(payload).to_bytes(8, "little") + key + hashlib.sha256(payload).digest()


def opened(make):
    """A descriptor of the directory, which must be the user's own, or None."""
    place = directory()
    if place is None:
        return None
    if make:
        place.mkdir(0o700, parents=True, exist_ok=True)
    at = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found = os.fstat(at)
    if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return at
    os.close(at)
    return None


def load(text):
    """(ours, theirs) in seconds, or None."""
    key = hashlib.sha256(text.encode()).digest()
    try:
        at = opened(make=False)
        if at is None:
            return None
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            with os.fdopen(os.open(f"{key.hex()}.code", flags, dir_fd=at), "rb") as file:
                found = os.fstat(file.fileno())
                data = file.read(LONGEST) if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else b""
        finally:
            os.close(at)
        size = len(header(key, b""))
        if data[:size] != header(key, data[size:]):
            return None
        said = json.loads(data[size:])
        times = float(said["ours"]), float(said["theirs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return times if said["text"] == text and all(math.isfinite(t) and t > 0 for t in times) else None


def store(text, ours, theirs):
    """Written under another name, then renamed, so no reader sees half of an entry."""
    key = hashlib.sha256(text.encode()).digest()
    payload = json.dumps({"text": text, "ours": ours, "theirs": theirs}).encode()
    try:
        at = opened(make=True)
        if at is None:
            return
        aside = f"aside.{os.getpid()}.{key.hex()[:16]}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(aside, flags, 0o600, dir_fd=at), "wb") as file:
                    file.write(header(key, payload) + payload)
                os.rename(aside, f"{key.hex()}.code", src_dir_fd=at, dst_dir_fd=at)
            except OSError:
                os.unlink(aside, dir_fd=at)
        finally:
            os.close(at)
    except OSError:
        pass
