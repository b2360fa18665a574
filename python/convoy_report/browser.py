"""The page in a real browser: Chromium without a window. For the screenshots in doc/ and the tests."""

import hashlib
import html
import re
import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

SIZES = {1280: 900, 375: 812}  # width: height of a screen
SCHEMES = {"dark": 0, "light": 1}  # as Chromium numbers what the reader prefers


def find():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def framed(page, width):
    """A window is never narrower than 500 pixels, but a frame in it can be."""
    return (f'<!doctype html><meta charset="utf-8"><body style="margin:0"><iframe style="border:0;width:{width}px;height:{SIZES[width]}px" '
            f'srcdoc="{html.escape(page)}"></iframe></body>')


def run(page, width, scheme, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(framed(page, width))
        command = [find(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile",
                   f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", f"--window-size={width},{SIZES[width]}",
                   *options, path.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def dom(page, width, scheme):
    """The document after its scripts have run; one inside the page reaches it as parent.document."""
    return run(page, width, scheme, "--dump-dom")


def digest(page):
    """Of what comes before the tabs, less the commit: another clone may not know it."""
    first = re.sub(r"(recorded in )?commit [^<]*", "", page[: page.index('<input type="radio"')])
    return hashlib.sha256(first.encode()).hexdigest().encode()


def stamp(path, page):
    """Adds the page's digest to a PNG as a comment, after its header: a test sees whether the picture is today's."""
    data, chunk = path.read_bytes(), b"tEXtpage\0" + digest(page)
    path.write_bytes(data[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:])


def screenshots(page, folder):
    """report-1280-light.png and the others; their paths."""
    paths = [(Path(folder).resolve() / f"report-{width}-{scheme}.png", width, scheme) for width in SIZES for scheme in SCHEMES]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for path, width, scheme in paths:
        run(page, width, scheme, f"--screenshot={path}")
        stamp(path, page)
    return [path for path, *_ in paths]
