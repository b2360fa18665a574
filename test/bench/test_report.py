"""The page and the tables: drawn from small results, every figure is there, and the documents have the results' figures."""

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import convoy_report as report  # noqa: E402
from convoy_report import browser  # noqa: E402
from convoy_report.page import page as page_of  # noqa: E402

PEERS = {"convoy": 2.0, "torch eager": 9.0, "torch.compile channels_last": 5.0, "openvino": 6.5}


def row(block, series, size, peer, ms, **more):
    return {"block": block, "chain": f"x[{size},8,9,9] | conv2d(4,3)", "series": series, "size": size, "peer": peer,
            "device": "cpu", "precision": "fp32", "threads": 2, "ms": ms, "max_abs_error": 1e-6, "flops": 4e8,
            "bytes": 2e6, "command": f"bench/suites/bench.sh --peer '{peer}'"} | more


def sample():
    rows = [row(b, "full", 8, p, ms) for b in "ABC" for p, ms in PEERS.items()]
    rows += [row(b, s, n, p, ms * n) for b in "ABC" for s in ("batch", "image", "channels") for n in (4, 8)
             for p, ms in PEERS.items()]
    rows += [row(None, "operator", "gelu", "convoy", 2.0), row(None, "operator", "gelu", "openvino", 1.0),
             row(None, "operator", "gelu", "onnxruntime", None, error="cannot <take> it")]
    rows += [r | {"device": "cuda", "precision": "tf32", "threads": 0} for r in rows if r["series"] == "full"]
    return {"date": "2026-01-02T03:04:05+00:00", "versions": {"torch": "2.13.0"}, "command": "make bench", "rows": rows,
            "machine": {"name": "a <machine>", "peak_gflops": 200.0, "peak_gbps": 20.0}}


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "one.json").write_text(json.dumps(sample()))
    return folder


FIGURES = (
    [f"speedup-{d}-{b}" for d in ("cpu-fp32", "cuda-tf32") for b in "ABC"]
    + [f"{kind}-{d}" for kind in ("error", "roofline") for d in ("cpu-fp32", "cuda-tf32")]
    + ["operators-cpu-fp32"] + [f"size-cpu-fp32-{b}-{s}" for b in "ABC" for s in ("batch", "image", "channels")]
)


def draw(results, tmp_path):
    page = tmp_path / "page.html"
    assert report.main(["--results", str(results), "-o", str(page)]) == 0
    return page


def test_every_figure_is_drawn_with_the_command_that_repeats_it(results, tmp_path):
    page = draw(results, tmp_path).read_text()
    found = dict(re.findall(r'<figure id="([^"]+)">(.*?)</figure>', page, re.S))
    assert sorted(found) == sorted(FIGURES)
    for name, body in found.items():
        assert "<svg" in body and re.search(r"<pre>\s*\S", body), name
        assert re.search(r"<(rect|circle)", body), name
    assert "9.00 ms, 4.50×" in found["speedup-cpu-fp32-A"] and "2.00 ms" in found["speedup-cpu-fp32-A"]


def test_the_page_needs_nothing_from_elsewhere(results, tmp_path):
    page = draw(results, tmp_path).read_text()
    assert not re.search(r"<script|<link|@import|url\(|src=|https?://", page)
    assert "prefers-color-scheme:dark" in page and "width=device-width" in page
    assert "a &lt;machine&gt;" in page and "<machine>" not in page


def test_rows_where_a_peer_is_faster_or_fails_are_shown(results, tmp_path):
    page = draw(results, tmp_path).read_text()
    assert 'class="loss"' in page and "0.500× openvino" in page
    assert "cannot &lt;take&gt; it" in page
    assert "| gelu | 2.00 | 1.00 | openvino |" in report.render(report.load(results), "losses-cpu-fp32")


def drawn(number, precision, ours, rival, errors, **more):
    """Rows of one chain of a sample: times of Convoy and torch.compile, errors of Convoy and of eager PyTorch."""
    times = {"convoy": ours, "torch.compile": rival, "torch eager": 9.0}
    exact = {"convoy": errors[0], "torch.compile": errors[1], "torch eager": errors[1]}
    rows = [row(None, "sample", f"sample {number}", peer, ms, device="cuda", precision=precision, rel_error=exact[peer])
            | {"chain": f"x[{number},8,9,9] | conv2d(4,3) | relu"} for peer, ms in times.items()]
    rows[0] |= more
    return rows


def test_a_sample_is_shown_whole(results, tmp_path):
    """Also the chains that Convoy loses, fails, or computes with too large an error; of the newest sample alone."""
    rows = [*drawn(1, "fp32", 1.0, 3.0, (3e-6, 1e-7)), *drawn(1, "tf32", 1.0, 5.0, (3e-4, 2.1e-4)),
            *drawn(2, "fp32", 2.0, 1.0, (9e-6, 5e-6)), *drawn(2, "tf32", 1.0, 2.0, (3e-4, 1e-4)),
            *drawn(3, "fp32", None, 1.0, (None, 1e-7), error="died"),
            *drawn(3, "tf32", 1.0, None, (float("nan"), 1e-4))]
    run = sample() | {"left_out": ["one", "another"], "rows": rows}
    old = sample() | {"date": "2025-01-01T00:00:00+00:00", "rows": drawn(4, "fp32", 1.0, 2.0, (1e-7, 1e-7))}
    (results / "new.json").write_text(json.dumps(run))
    (results / "old.json").write_text(json.dumps(old))
    told = report.render(report.load(results), "sample-cuda-all")
    assert told.startswith("Faster than torch.compile in 3 of 6 (fp32 1 of 3, tf32 2 of 3), "
                           "a median of 2.50 times as fast; 3 of 6 are within the error bound. 2 rows were not measured.\n")
    assert r"| 1 | `x[1,8,9,9] \| conv2d(4,3) \| relu` | 1.00 | 3.00 | 3.00 | 3.0e-06 (1.0e-07) | 1.00 | 5.00 |" in told
    assert "| 2.00 | 1.00 | **0.500** | 9.0e-06 (5.0e-06) | 1.00 | 2.00 | 2.00 | **3.0e-04** (1.0e-04) |" in told
    assert "| – | 1.00 | **–** | **–** (1.0e-07) | 1.00 | – | **–** | **nan** (1.0e-04) |" in told
    assert "x[4," not in told
    page = draw(results, tmp_path).read_text()
    assert 'id="sample-cuda-fp32"' in page and "every chain" in page and 'id="sample-cuda-tf32"' in page


def test_the_readmes_table(results):
    told = report.render(report.load(results), "summary").splitlines()
    assert len(told) == 6 and told[0].count("a <machine>") == 1 and "not measured" in told[0]
    assert told[2] == "| A | **2.50×** torch.compile channels_last | 2.00 ms, 1.0e-06 | – | – |"
    assert told[-1] == "| random chains | – | – | – | – |"


def test_tables_without_rows_say_so(results):
    cases = report.load(results)
    for name in ("sample-cuda-all", "operators-cuda-tf32", "blocks-cpu-tf32"):
        assert report.render(cases, name) == "Not measured yet.\n" and report.render(cases, name, "") == ""


def test_a_misspelt_option_gets_the_nearest(capsys):
    with pytest.raises(SystemExit):
        report.main(["--chek", "README.md"])
    assert "unknown option '--chek'; did you mean '--check'?" in capsys.readouterr().err


def test_a_ratio_is_made_of_one_run(results):
    later = sample() | {"date": "2026-02-02T00:00:00+00:00"}
    later["rows"] = [row("A", "full", 8, "convoy", 1.0), row("A", "full", 8, "openvino", 4.0),
                     row("B", "full", 8, "openvino", 0.1)]  # B without ours: the older run stays
    (results / "two.json").write_text(json.dumps(later))
    cases = {c.block: c for c in report.select(report.load(results), device="cpu", series="full")}
    assert set(cases["A"].rows) == {"convoy", "openvino"} and cases["A"].peers()[0]["ms"] == 4.0
    assert cases["B"].peers()[0]["ms"] == 5.0


def test_figures_of_a_document_are_written_and_checked(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: blocks-cpu-fp32 -->\nstale\n<!-- end -->\nafter\n")
    options = ["--results", str(results)]
    assert report.main(options + ["--check", str(page)]) == 1
    assert report.main(options + ["--update", str(page)]) == 0
    assert report.main(options + ["--check", str(page)]) == 0
    told = page.read_text()
    assert "| **convoy** | **2.00** |" in told and "**2.50×** (torch.compile channels_last)" in told
    assert told.startswith("before\n") and told.endswith("after\n")
    page.write_text(told.replace("9.00", "9.01"))
    assert report.main(options + ["--check", str(page)]) == 1


def diffusion_run():
    """As bench/suites/diffusion.py writes it: two blocks and a convolution in bf16."""
    times = {"res 320": (2.0, 1.0, 4.0), "vae up": (2.0, 1.0, 2.0), "conv 64": (1.0, 2.0, 2.0)}
    rows = [{"block": block, "dtype": "bf16", "row": name, "ms": ms, "error": 3e-3} for block, told in times.items()
            for name, ms in zip(("torch compile channels_last", "convoy contiguous", "convoy channels_last"), told)]
    return {"date": "2026-01-04", "machine": "NVIDIA H200, PyTorch 2.11.0, CUDA 13.0", "command": "python bench/suites/diffusion.py",
            "rows": rows}


def never_run():
    """As bench/modules/never_slower.py writes it: one module is slower, one as fast, one faster."""
    rows = [{"case": f"module {ms:g}", "eager_ms": 1.0, "convoy_ms": ms, "error": 1e-7} for ms in (1.5, 1.0, 0.1)]
    return {"date": "2026-01-04", "device": "a machine", "torch": "2.13.0", "threads": 2, "rows": rows,
            "command": "python bench/modules/never_slower.py --device cpu --threads 2"}


def test_diffusion_models_and_modules_are_on_the_page(results, tmp_path):
    for folder, run in (("diffusion", diffusion_run()), ("never", never_run())):
        (results / folder).mkdir()
        (results / folder / "new.json").write_text(json.dumps(run))
    found = dict(re.findall(r'<figure id="([^"]+)">(.*?)</figure>', draw(results, tmp_path).read_text(), re.S))
    assert found.keys() - set(FIGURES) == {"diffusion-cuda-bf16-contiguous", "diffusion-cuda-bf16-channels_last", "modules-cpu-fp32"}
    here, last = found["diffusion-cuda-bf16-contiguous"], found["diffusion-cuda-bf16-channels_last"]
    assert here.count(">2.00×<") == 2 and ">0.500× torch.compile NHWC<" in here and here.count('class="loss"') == 1 and last.count('class="loss"') == 2
    assert [found["modules-cpu-fp32"].count(f'class="{kind}"') for kind in ("loss", "p5")] == [1, 1]
    cases = report.load(results)
    told = report.render(cases, "diffusion-cuda-bf16")
    assert told.startswith("Geometric means, 2 blocks: 2.00 contiguous, 0.707 channels_last; 1 convolutions: 0.500 contiguous, 0.500")
    assert "| res 320 | 2.00 torch.compile channels_last | 1.00 | 2.00 | 4.00 | **0.500** | 3.0e-03 (3.0e-03) |" in told
    assert "`bench/results/diffusion/new.json`, 2026-01-04: NVIDIA H200; torch 2.11.0, cuda 13.0" in report.render(cases, "runs-cuda-bf16")
    assert "module" not in report.render(cases, "losses-cpu-fp32")  # they have a table of their own


def networks_run():
    """As bench/suites/whole.py writes it: a network in evaluation and in training; ONNX Runtime is faster, torch.compile failed."""
    times = {"network eval": {"convoy": 2.0, "torch eager": 4.0, "onnxruntime": 1.0}, "network train": {"convoy": 3.0, "torch eager": 3.6}}
    rows = [{"series": series, "size": "ResNet-18", "chain": "networks.resnet18", "block": None, "device": "cpu", "precision": "fp32",
             "dtype": "fp32", "threads": 2, "peer": peer, "ms": ms, "rel_error": 1e-6, "max_abs_error": None}
            for series, told in times.items() for peer, ms in told.items()]
    return {"date": "2026-01-04", "machine": {"name": "a machine"}, "versions": {"torch": "2.13.0"},
            "command": "python bench/suites/whole.py", "rows": rows}


def test_networks_have_a_table_and_figures(results, tmp_path):
    (results / "networks").mkdir()
    (results / "networks" / "new.json").write_text(json.dumps(networks_run()))
    told = report.render(report.load(results), "networks-cpu-fp32")
    assert told.startswith("Faster than torch eager in 2 of 2 (geometric mean 1.55×); onnxruntime in 0 of 1 (geometric mean 0.500×).")
    assert "| ResNet-18, eval | 2.00 | 4.00 (2.00×) | 1.00 (**0.500×**) | 1.0e-06 (1.0e-06) |" in told
    assert "| ResNet-18, train | 3.00 | 3.60 (1.20×) | – | 1.0e-06 (1.0e-06) |" in told
    assert "ResNet" not in report.render(report.load(results), "losses-cpu-fp32")  # they have a table of their own
    assert 'id="networks-cpu-fp32-eval"' in draw(results, tmp_path).read_text()


def test_wrong_results_are_refused(tmp_path, capsys):
    (tmp_path / "bad.json").write_text('{"rows": []}')
    assert report.main(["--results", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 2
    assert "bad.json: no date" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("value,told", [(1044.2, "1044"), (42.7, "42.7"), (0.2306, "0.231"), (5.5, "5.50"), (None, "–")])
def test_numbers_have_three_digits(value, told):
    assert report.fmt(value) == told


def test_documents_have_the_figures_of_the_results():
    documents = [p for p in ("README.md", "doc/PERFORMANCE.md") if (ROOT / p).exists()]
    command = [sys.executable, "-m", "convoy_report", "--results", str(ROOT / "bench" / "results"), "--check", *documents]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_performance_has_the_tables_of_never_slower(tmp_path):
    pytest.importorskip("torch")
    copy = tmp_path / "page.md"
    copy.write_text((ROOT / "doc/PERFORMANCE.md").read_text())
    command = [sys.executable, "bench/modules/never_slower.py", "--update", str(copy)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, check=True)
    assert copy.read_text() == (ROOT / "doc/PERFORMANCE.md").read_text()


PROBE = """<script>
const boxes = [...document.querySelectorAll('figure')].map(f => {
  const r = f.querySelector('svg').getBoundingClientRect();
  return [f.id, Math.round(r.width), Math.round(r.height)];
});
const first = [...document.querySelectorAll('.first')].map(f => [f.id, Math.round(f.getBoundingClientRect().top), f.innerText]);
parent.document.title = JSON.stringify({boxes, first, wide: document.documentElement.scrollWidth, room: innerWidth,
  ground: getComputedStyle(document.body).backgroundColor, signs: document.body.textContent.includes('4.50\\u00d7')});
</script>"""
SHOWN = [name for name in FIGURES if "cuda" in name]  # the tab that is open: the GPU's


def looked_at(page, width, scheme):
    """What PROBE sees of a page in Chromium."""
    if browser.find() is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    shown = browser.dom(page.replace("</body>", PROBE + "</body>"), width, scheme)
    told = re.search(r"<title>(\{.*?\})</title>", shown, re.S)
    assert told, shown[:500]
    return json.loads(told[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_a_browser_shows_the_page(results, tmp_path, width, scheme):
    """The rendered page: the GPU on the first screen, every figure of the open tab with a size, nothing too wide."""
    seen = looked_at(draw(results, tmp_path).read_text(), width, scheme)
    drawn = [b[0] for b in seen["boxes"] if b[1] > 0]
    assert sorted(drawn) == sorted(SHOWN)
    assert all(w > 250 and h > 20 for name, w, h in seen["boxes"] if name in SHOWN)
    assert seen["room"] == width and seen["wide"] <= seen["room"], "the page is wider than the screen"
    assert seen["ground"] == {"light": "rgb(252, 252, 250)", "dark": "rgb(21, 23, 26)"}[scheme]
    assert seen["signs"], "the page is not read as UTF-8"
    name, top, words = seen["first"][0]
    assert name == "first-cuda" and top < browser.SIZES[width] / 2
    assert "2.50 times as fast" in words and "1.0e-06" in words and "a <machine>; 2026-01-02; commit not recorded" in words


def test_paper_shows_every_tab(results, tmp_path):
    """The style for print, applied to the screen: every figure of every tab, on white."""
    seen = looked_at(draw(results, tmp_path).read_text().replace("@media print{", "@media screen{"), 1280, "dark")
    assert sorted(b[0] for b in seen["boxes"] if b[1] > 0) == sorted(FIGURES)
    assert seen["ground"] == "rgb(255, 255, 255)" and seen["wide"] <= seen["room"]


def test_screenshots_are_kept(results, tmp_path):
    """Of the right size, and neither empty nor all alike; those in doc/ are there."""
    if browser.find() is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    paths = browser.screenshots(draw(results, tmp_path).read_text(), tmp_path)
    for path in paths:
        width, height = struct.unpack(">II", path.read_bytes()[16:24])
        assert browser.SIZES[width] == height and path.stat().st_size > 10_000
        kept = ROOT / "doc" / path.name
        assert struct.unpack(">II", kept.read_bytes()[16:24]) == (width, height), kept
    assert len({path.read_bytes() for path in paths}) == 4


def test_the_screenshots_in_doc_are_todays():
    """Their digest is that of the page of bench/results. If not: python -m convoy_report --screenshots doc"""
    now = browser.digest(page_of(report.load(ROOT / "bench" / "results")))
    for width in browser.SIZES:
        for scheme in browser.SCHEMES:
            assert now in (ROOT / "doc" / f"report-{width}-{scheme}.png").read_bytes()


def test_times_of_convoy_bench_are_read(tmp_path):
    chain = {"chain": "x[1,3,8,8] | conv2d(4, 3)", "device": "cpu", "machine": "a machine", "precision": "fp32", "threads": 2,
             "ms": 2.0, "ms_min": 1.9, "max_abs_error": 1e-7, "rel_error": 1e-7, "unfused_ms": 3.0, "peak_gflops": 9.0}
    problem = {"file": "net.py", "device": "cpu", "machine": "a machine", "precision": "fp32", "threads": 2,
               "ms": {"eager": 5.0, "compile": None, "convoy": 2.5}, "errors": [{"max_abs": 1e-7}], "busy": False}
    for name, told in (("chain.json", chain), ("problem.json", problem)):
        (tmp_path / name).write_text(json.dumps(told))
    page = tmp_path / "page.html"
    assert report.main([str(tmp_path / "chain.json"), str(tmp_path / "problem.json"), "-o", str(page)]) == 0
    text = page.read_text()
    assert "conv2d(4, 3)" in text and "3.00 ms, 1.50×" in text  # unfused
    assert "net.py" in text and "5.00 ms, 2.00×" in text  # eager
    assert 'id="first-cpu"' in text and "<b>2.00 times as fast</b>" in text
    assert report.main([str(tmp_path / "chain.json"), "-o", str(page)]) == 0
    assert "<b>1.50 times as fast</b> as it is without fusion" in page.read_text()
    (tmp_path / "problem.json").write_text(json.dumps(problem | {"busy": True}))
    assert report.main([str(tmp_path / "problem.json"), "-o", str(page)]) == 0
    assert "these times are not reliable" in page.read_text() and "times as fast" not in page.read_text() and "2.00×" not in page.read_text()


def test_labels_of_ticks_differ():
    from convoy_report.svg import LogAxes, tick

    assert tick(1e-4) == "1e-04" and tick(0.02) == "0.02"
    for low, high in ((0.02, 0.9), (1, 20), (3e4, 8e5), (2e5, 3e7), (1e-7, 1e-3)):
        ticks = LogAxes._ticks(low, high)
        assert len({tick(t) for t in ticks}) == len(ticks) >= 2


def test_the_gpus_roofline_has_a_roof(results, tmp_path):
    run = sample()
    run["machine"] = {"name": "NVIDIA H200", "peak_gbps": 4000.0, "peak_gflops": None}
    (results / "one.json").write_text(json.dumps(run))
    found = dict(re.findall(r'<figure id="([^"]+)">(.*?)</figure>', draw(results, tmp_path).read_text(), re.S))
    assert "curve roof" in found["roofline-cuda-tf32"] and "data sheet" in found["roofline-cuda-tf32"]


def test_rms_errors_have_a_column_where_they_are_known(results):
    told = json.loads((results / "one.json").read_text())
    assert "rms" not in "".join(report.md_blocks(report.load(results), "cpu", "fp32"))
    for r in told["rows"]:
        r["rms_error"] = 2.5e-7
    (results / "one.json").write_text(json.dumps(told))
    lines = report.md_blocks(report.load(results), "cpu", "fp32")
    assert lines[0].endswith("| max abs error: A, B, C | rms error: A, B, C |")
    assert lines[2].endswith("| 1.0e-06, 1.0e-06, 1.0e-06 | 2.5e-07, 2.5e-07, 2.5e-07 |")
    assert len({line.count("|") for line in lines}) == 1


def test_files_that_cannot_be_used_are_named(results, tmp_path, capsys):
    wrong = tmp_path / "wrong.json"
    wrong.write_text("no JSON")
    for arguments, told in (
        ([str(wrong)], f"{wrong}: not JSON"),
        (["--results", str(results), "--check", "nofile.md"], "nofile.md: No such file"),
        (["--results", str(results), "-o", str(tmp_path / "none" / "page.html")], "page.html: No such file"),
    ):
        assert report.main(arguments) == 2
        assert told in capsys.readouterr().err


def test_half_precision_and_channels_last_have_tabs(results, tmp_path):
    """After float32's, which stays the open one; an error that is known as a share is shown as one."""
    whole = json.loads((results / "one.json").read_text())
    rows = [row("A", "full", 8, "convoy", 1.0, device="cuda", dtype="bf16", layout=layout, max_abs_error=None, rel_error=2e-3)
            for layout in ("contiguous", "channels_last")]
    rows += [r | {"device": "cuda", "threads": 0} for r in whole["rows"] if r["series"] == "full" and r["device"] == "cpu"]
    (results / "two.json").write_text(json.dumps(whole | {"rows": rows, "date": "2026-01-03"}))
    page = draw(results, tmp_path).read_text()
    tabs = re.findall(r'id="tab-([\w-]+)"( checked)?><label for="[\w-]+">([^<]*)<', page)
    assert tabs == [("cuda-fp32", " checked", "GPU, fp32"), ("cuda-tf32", "", "GPU, tf32"), ("cuda-bf16", "", "GPU, bf16"),
                    ("cuda-bf16-nhwc", "", "GPU, bf16 channels_last"), ("cpu-fp32", "", "CPU, fp32")]
    assert "2.0e-03 of the largest" in page and 'id="first-cuda"><h2>GPU, fp32' in page
    assert "1.00" in report.render(report.load(results), "blocks-cuda-bf16-nhwc")
