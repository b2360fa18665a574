"""The command: exit statuses, messages, JSON, and files."""

import json
import os
import re
import stat
import subprocess
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest

from conftest import COMMAND, refused

SMALL = "x[3,4,9,9] | conv2d(6,3) | group_norm(2) | relu"


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["fly"], ["unknown command 'fly'"]),
        (["pln"], ["unknown command 'pln'", "did you mean 'plan'?"]),
        (["plan"], ["plan needs a chain"]),
        (["ops", SMALL], ["takes no chain"]),
        (["plan", SMALL, SMALL], ["one chain at a time"]),
        (["plan", SMALL, "--colour"], ["unknown option '--colour'"]),
        (["plan", SMALL, "--repeat", "3"], ["'--repeat' is not an option of this command"]),
        (["plan", SMALL, "--precison", "fp32"], ["unknown option '--precison'", "did you mean '--precision'?"]),
        (["plan", "x[1,4,9,9] | con2d(6,3)"], ["column 14", "no operator 'con2d'", "did you mean 'conv2d'?"]),
        (["plan", "x[1,4,9,9] | conv2d(4,64,3)"], ["the kernel spans 64", "torch.nn's (4,64,3) is conv2d(64,3)"]),
        (["plan", "x[1,4,9,9] | conv2d(6,3,paddin=1)"], ["no argument 'paddin'", "did you mean 'padding'?"]),
        (["plan", "x[1,4,9,9] | relu @skip | tanh | add(@skp)"], ["no value 'skp'", "did you mean 'skip'?"]),
        (["ejct"], ["unknown command 'ejct'", "did you mean 'eject'?"]),
        (["completion", "fish"], ["bash or zsh", "'fish'"]),
        (["completion"], ["needs a shell: bash or zsh"]),
        (["plan", SMALL, "--device"], ["--device needs a value"]),
        (["plan", SMALL, "--device", "tpu"], ["auto|ref|cpu|cuda", "'tpu'"]),
        (["plan", SMALL, "--device="], ["auto|ref|cpu|cuda"]),
        (["plan", SMALL, "--json=1"], ["takes no value"]),
        (["plan", SMALL, "--ordinal", "-1"], ["whole number", "'-1'"]),
        (["plan", SMALL, "--threads", "two"], ["whole number", "'two'"]),
        (["check", SMALL, "--samples", "0"], ["whole number, at least 1"]),
        (["check", SMALL, "--seed", "99999999999"], ["whole number"]),
        (["plan", "problem.py"], ["Python", "pip install ."]),
        (["bench", "problem.py"], ["Python", "pip install ."]),
        (["eject", "problem.py"], ["Python", "pip install ."]),
        (["plan", "nothing.txt"], ["neither a chain", "No such file"]),
        (["plan", ""], ["neither a chain"]),
        (["plan", "x[1,2] | fly"], ["column 10", "fly"]),
        (["plan", "x[1,2,3 | relu"], ["column 9"]),
        (["check", "x[1,4,2,2] | conv2d(8,3)"], ["conv2d"]),
        (["run", SMALL], ["--output"]),
        (["run", SMALL, "--output", "z=y.npy"], ["no output 'z'"]),
        (["run", SMALL, "--output", "a.npy", "--output", "b.npy"], ["more output files"]),
        (["run", SMALL, "--output", "y.npy"], ["input x[3,4,9,9] is not given", "--input x=FILE.npy"]),
        (["run", SMALL, "--output", "y.npy", "--seed", "1", "--input", "no.npy"], ["no.npy: No such file"]),
        (["run", SMALL, "--output", "y.npy", "--seed", "1", "--param", "no.npy"], ["NAME=FILE.npy"]),
        (["run", SMALL, "--output", "y.npy", "--seed", "1", "--param", "weight"],
         ["NAME=FILE.npy", "conv2d.weight[6,4,3,3], conv2d.bias[6], group_norm.weight[6]", "did you mean 'conv2d.weight'?"]),
        (["run", SMALL, "--output", "y.npy", "--seed", "1", "--param", "conv2d.wieght=no.npy"],
         ["no parameter 'conv2d.wieght'", "did you mean 'conv2d.weight'?"]),
        (["run", SMALL, "--output", "y.npy", "--seed", "1", "--param", "w=no.npy"], ["no parameter 'w'"]),
    ],
)
def test_refusals(convoy, tmp_path, arguments, words):
    extra = [] if arguments[0] in ("fly", "pln", "ejct", "ops", "demo", "completion") else ["--device=ref"]
    refused(convoy(*arguments[:2], *extra, *arguments[2:]), *words)
    assert not list(tmp_path.iterdir())


def test_the_three_numbers_of_torch_get_a_hint(convoy):
    """nn.Conv2d(3,64,3) that is legal in chain text: the plan is that of what is written, and a line says what may be meant."""
    status, out, err = convoy("plan", "x[1,3,96,96] | conv2d(3,64,3)", "--device", "ref")
    assert status == 0 and "conv2d(3, 64, stride=3)" in out
    assert err == "convoy: note: conv2d has kernel 64 and stride 3; torch.nn's (3,64,3) is conv2d(64,3)\n"
    for numbers in ("8,16,1", "4,6,3", "3,6,5"):
        chain = f"x[1,{numbers.split(',')[0]},32,32] | conv2d({numbers})"
        assert f"torch.nn's ({numbers}) is conv2d({numbers.split(',', 1)[1]})" in convoy("plan", chain, "--device", "ref")[2]
    later = "x[1,3,96,96] | conv2d(3,64,3) | group_norm(16)"
    refused(convoy("plan", later, "--device", "ref"), "group_norm", "torch.nn's (3,64,3) is conv2d(64,3)")
    for chain in ("x[1,8,32,32] | conv2d(8,16)", "x[1,3,96,96] | conv2d(3,7,2)", "x[1,3,96,96] | conv2d(96,16,16)", "x[1,3,96,96] | conv2d(64,3,1)"):
        assert convoy("plan", chain, "--device", "ref")[2] == ""


def test_a_gpu_that_is_not_there(convoy):
    env = {"CVY_CUDA_LIB": "/nonexistent/libcuda.so.1", "CVY_CACHE": "off"}
    refused(convoy("check", SMALL, "--device", "cuda", env=env), "cuda")


def test_closed_output_is_a_failure(convoy):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([COMMAND, "ops"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "cannot be written" in done.stderr


# ---- chains ------------------------------------------------------------------------------------------------------


def test_chain_from_file_and_standard_input(convoy, tmp_path):
    (tmp_path / "chain.txt").write_text(SMALL + "\n")
    direct = convoy("plan", SMALL, "--device", "ref")
    assert direct[0] == 0 and "group_norm" in direct[1]
    assert convoy("plan", "chain.txt", "--device", "ref") == direct
    assert convoy("plan", "-", "--device", "ref", stdin=SMALL) == direct


@pytest.mark.parametrize("block", "ABC")
def test_blocks_by_name(convoy, block):
    status, out, _ = convoy("plan", block, "--device", "ref")
    assert status == 0
    assert re.search(r"x\[128,8,(128,128|256,256)\]", out)


def test_files_that_are_no_chain(convoy, tmp_path):
    (tmp_path / "zero").write_bytes(b"x[1]\0| relu")
    (tmp_path / "big").write_bytes(b" " * (2 << 20))
    refused(convoy("plan", "zero"), "not chain text")
    refused(convoy("plan", "big"), "not chain text")
    refused(convoy("plan", "."), ".")


# ---- what the commands print -------------------------------------------------------------------------------------


def test_demo_agrees(convoy, device):
    status, out, err = convoy("demo", "--device", device)
    assert status == 0, err
    assert out.count("agrees with float64") == 3
    assert out.endswith("All three agree.\n")


def test_plan_json(convoy, device):
    status, out, _ = convoy("plan", SMALL, "--device", device, "--json")
    got = json.loads(out)
    assert status == 0 and got["device"] == device and got["workspace"] > 0 and "conv2d" in got["plan"]


def test_plan_says_why(convoy):
    status, out, _ = convoy("plan", SMALL, "--device", "cpu", "--why")
    assert status == 0 and "winograd 4x4" in out and out.count("  * ") == 1 and " ms" in out
    assert "depthwise" in out and "a group has more than 1 input channel" in out
    status, out, _ = convoy("plan", SMALL, "--device", "cpu", "--why", "--json")
    assert status == 0 and "winograd 4x4" in json.loads(out)["why"]
    status, out, _ = convoy("plan", SMALL, "--device", "cpu", "--why", "--measure")
    assert status == 0 and ", measured " in out and "  * " in out
    status, _, err = convoy("plan", SMALL, "--device", "ref", "--why")
    assert status == 2 and "no passes" in err


def test_plan_and_why_predict_for_the_same_threads(convoy, monkeypatch):
    monkeypatch.setenv("CVY_MACHINE", "avx512,8")
    for threads in ("1", "8"):
        plan = convoy("plan", SMALL, "--device", "cpu", "--threads", threads)[1]
        why = convoy("plan", SMALL, "--device", "cpu", "--threads", threads, "--why")[1]
        assert re.search(r"^  \* .*?([\d.e-]+) ms", why, re.M)[1] == re.search(r"predicted ([\d.e-]+) ms", plan)[1]


def test_plan_measures_passes(convoy):
    status, out, _ = convoy("plan", SMALL, "--device", "cpu", "--measure")
    assert status == 0 and ", measured " in out
    status, _, err = convoy("plan", SMALL, "--device", "ref", "--measure")
    assert status == 2 and "no passes" in err


def test_ops_json_is_ops(convoy):
    assert json.loads(convoy("ops", "--json")[1]) == convoy("ops")[1].splitlines()


@pytest.mark.parametrize("data", ["uniform", "normal", "integer", "special"])
def test_check(convoy, device, data):
    status, out, err = convoy("check", SMALL, "--device", device, "--data", data, "--json")
    got = json.loads(out)
    assert status == 0 and got["agree"] is True and got["mismatches"] == 0, err
    assert 0 <= got["rel_error"] <= got["bound"] < 1e-4
    assert got["samples"] == 3


NORMS = ["x[2,8,5,5], y[8] | group_norm(2, weight=@y)", "x[2,8,5,5], y[8] | conv2d(8,3) | group_norm(2, bias=@y)",
         "x[2,8,5,5], y[8] | instance_norm(affine=True, weight=@y)", "x[2,8,5,5], y[8] | batch_norm(training=True, weight=@y)",
         "x[2,8,5,5] | mean((0,2,3)) @s | @x | conv2d(8,3) | group_norm(2, weight=@s)"]  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("chain", NORMS)
def test_norms_take_computed_weights(convoy, chain, dtype):
    status, _, err = convoy("check", chain, "--device", "cpu", "--dtype", dtype)
    assert status == 0, err


@pytest.mark.parametrize("chain", ["x[3,4] | flip(0)", "x[3,4], y[3,4] | cat(@y, 0) | slice(0,1,4)", "x[4,4] | permute(1,0)", "x[3,4] | flip(1)"])
def test_check_of_moved_samples(convoy, chain):
    """Samples that change places cannot be checked one by one."""
    status, out, err = convoy("check", chain, "--device", "ref", "--data", "integer")
    assert status == 0 and "all of it" in out, out + err


def test_check_prints_a_verdict(convoy):
    status, out, _ = convoy("check", SMALL, "--device", "ref", "--samples", "2")
    assert status == 0
    assert "2 of 3 samples" in out and out.rstrip().endswith("agrees")


def test_bench_json_has_the_keys_others_read(convoy, device):
    status, out, _ = convoy("bench", SMALL, "--device", device, "--repeat", "3", "--compare", "--json")
    got = json.loads(out)
    keys = "chain device machine precision threads ms ms_min gflops fma_share gbps max_abs_error rel_error".split()
    assert status == 0 and list(got)[: len(keys)] == keys
    assert got["device"] == device and got["precision"] == "fp32" and got["runs"] == 3
    assert 0 < got["ms_min"] <= got["ms"] and got["gflops"] > 0 and got["gbps"] > 0
    assert 0 < got["unfused_ms_min"] <= got["unfused_ms"]
    assert got["rel_error"] < 1e-6
    assert abs(datetime.fromisoformat(got["date"]) - datetime.now(timezone.utc)) < timedelta(minutes=10) and got["version"]


def test_bench_prints_a_table(convoy):
    status, out, _ = convoy("bench", SMALL, "--device", "ref", "--repeat", "2", "--compare")
    assert status == 0
    for word in ("ms, median", "ms, minimum", "spread, %", "against float64: agrees", "GFLOP/s", "of FMA peak", "GB/s", "of bandwidth", "max abs error", "unfused"):
        assert word in out


def test_bench_tells_of_a_busy_machine(convoy):
    """While something else has all processors no ratio is printed, but why."""
    spinning = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count())]
    try:
        arguments = ("bench", "x[4,8,64,64] | conv2d(32,3) | relu", "--device", "cpu", "--compare")
        status, out, _ = convoy(*arguments)
        assert status == 0 and "BUSY: other processes used" in out and "times as fast" not in out
        assert json.loads(convoy(*arguments, "--json")[1])["busy"] is True
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.parametrize("fuse", ["on", "off"])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_bits(convoy, device, tmp_path, fuse, threads):
    def result(n):
        options = ["--device", device, "--threads", n, "--fuse", fuse, "--seed", "1", "--output", "y.npy"]
        assert convoy("run", SMALL, *options) == (0, "", "")
        return (tmp_path / "y.npy").read_bytes()

    assert result(threads) == result(2)


def test_an_empty_batch(convoy, device):
    assert convoy("check", "x[0,4,9,9] | conv2d(6,3) | relu", "--device", device)[0] == 0


# ---- run ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.integers(-3, 4, (2, 3, 5, 5)).astype("<f4"),
        "conv2d.weight": rng.integers(-2, 3, (4, 3, 2, 2)).astype("<f4"),
        "conv2d.bias": rng.integers(-2, 3, 4).astype("<f4"),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return arrays


CHAIN = "x[2,3,5,5] | conv2d(4,2) | relu"
PARAMS = ["--param", "conv2d.weight=conv2d.weight.npy", "--param", "conv2d.bias=conv2d.bias.npy"]


def expected(arrays):
    """The convolution by numpy's own means; whole numbers, so exact."""
    windows = np.lib.stride_tricks.sliding_window_view(arrays["x"], (2, 2), (2, 3))
    y = np.einsum("nchwrs,kcrs->nkhw", windows, arrays["conv2d.weight"]) + arrays["conv2d.bias"][:, None, None]
    return np.maximum(y, 0)


def run_files(convoy, *more, x="x.npy", y="y.npy", device="ref"):
    return convoy("run", CHAIN, "--device", device, "--input", x, *PARAMS, "--output", y, *more)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_run_is_numpys_result(convoy, device, tmp_path, files, order, version):
    for name, array in files.items():
        with open(tmp_path / f"{name}.npy", "wb") as f:
            np.lib.format.write_array(f, np.asarray(array, order=order), version=version)
    assert run_files(convoy, device=device) == (0, "", "")
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == np.dtype("<f4") and y.flags.c_contiguous
    np.testing.assert_array_equal(y, expected(files))


@pytest.mark.parametrize("dtype, descr", [("fp16", "<f2"), ("bf16", "<u2")])
def test_run_in_half_precision(convoy, tmp_path, dtype, descr):
    """fp16 is numpy's float16; bf16 is the front half of float32's words, in and out."""
    x = np.array([[1.5, -2.0, 0.25], [3.0, 65504.0, -0.0]], np.float32)
    w = np.array([2.0, 0.5, 1.0], np.float32)
    words = (lambda a: a.astype("<f2")) if dtype == "fp16" else (lambda a: (a.view("<u4") >> 16).astype("<u2"))
    np.save(tmp_path / "x.npy", words(x))
    np.save(tmp_path / "w.npy", words(w))
    result = convoy(
        "run", "x[2,3] | mul(w[3])", "--dtype", dtype, "--device", "ref", "--input", tmp_path / "x.npy",
        "--param", f"w={tmp_path / 'w.npy'}", "--output", tmp_path / "y.npy",
    )  # fmt: skip
    assert result == (0, "", "")
    y = np.load(tmp_path / "y.npy")
    assert y.dtype == descr
    want = words(x * w) if dtype == "fp16" else np.array([[0x4040, 0xBF80, 0x3E80], [0x40C0, 0x46FF, 0x8000]], "<u2")
    np.testing.assert_array_equal(y.view("<u2"), want.view("<u2"))
    refused(
        convoy("run", "x[2,3] | relu", "--device", "ref", "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy"),
        f"elements are '{descr}', input x is fp32, which is '<f4' in files",
    )


def test_run_by_names(convoy, tmp_path, files):
    assert run_files(convoy, x="x=x.npy", y="relu=y.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected(files))


def test_run_on_two_inputs(convoy, tmp_path):
    a, b = np.arange(6, dtype="<f4").reshape(2, 3), np.full((2, 3), 10, "<f4")
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    chain = "a[2,3], b[2,3] | sub(@b)"
    for inputs in (["a.npy", "b.npy"], ["b=b.npy", "a=a.npy"]):
        arguments = [word for name in inputs for word in ("--input", name)]
        assert convoy("run", chain, "--device", "ref", *arguments, "--output", "y.npy") == (0, "", "")
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), a - b)


def test_seeds(convoy, tmp_path):
    def result(seed):
        assert convoy("run", CHAIN, "--device", "ref", "--seed", seed, "--output", "y.npy")[0] == 0
        return np.load(tmp_path / "y.npy")

    np.testing.assert_array_equal(result(7), result(7))
    assert (result(7) != result(8)).any()


@pytest.mark.parametrize(
    "array, word",
    [
        (np.zeros((2, 3, 5, 5), "<f8"), "'<f8'"),
        (np.zeros((2, 3, 5, 5), ">f4"), "'>f4'"),
        (np.zeros((2, 3, 5, 5), "<i4"), "'<i4'"),
        (np.zeros((2, 3, 5, 5), "<c8"), "'<c8'"),
        (np.zeros((2, 3, 5), "<f4"), "has shape [2,3,5]"),
        (np.zeros((2, 3, 5, 6), "<f4"), "x has [2,3,5,5]"),
    ],
)
def test_run_refuses_other_arrays(convoy, tmp_path, files, array, word):
    np.save(tmp_path / "x.npy", array)
    refused(run_files(convoy), "x.npy: ", word)
    assert not (tmp_path / "y.npy").exists()


def test_run_refuses_garbage(convoy, tmp_path, files):
    whole = (tmp_path / "x.npy").read_bytes()
    for bytes_, word in ((b"", "magic"), (b"hello there, world", "magic"), (whole[:90], "bytes"), (whole[:-1], "bytes")):
        (tmp_path / "x.npy").write_bytes(bytes_)
        refused(run_files(convoy), "x.npy: ", word)


def test_the_same_tensor_twice(convoy, files):
    refused(run_files(convoy, "--param", "conv2d.bias=conv2d.bias.npy"), "given twice")


def test_a_failure_leaves_what_was_there(convoy, tmp_path, files):
    (tmp_path / "y.npy").write_text("old")
    np.save(tmp_path / "x.npy", np.zeros(3))
    refused(run_files(convoy))
    assert (tmp_path / "y.npy").read_text() == "old"
    refused(run_files(convoy, y="missing/y.npy"))
    assert not list(tmp_path.glob("**/*.part")) and not list(tmp_path.glob("**/.convoy*"))


def test_what_is_no_file_is_written_into(convoy, tmp_path, files):
    assert run_files(convoy, y="/dev/null") == (0, "", "")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert run_files(convoy, y="there.npy") == (0, "", "")
    with open(tmp_path / "out.npy", "wb") as out:
        arguments = ["run", CHAIN, "--device", "ref", "--input", "x.npy", *PARAMS, "--output", "/dev/stdout"]
        subprocess.run([COMMAND, *arguments], cwd=tmp_path, stdout=out, check=True, timeout=60)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "there.npy").read_bytes()
    with open(tmp_path / "out.npy", "ab") as out:  # >>
        subprocess.run([COMMAND, *arguments], cwd=tmp_path, stdout=out, check=True, timeout=60)
    assert (tmp_path / "out.npy").read_bytes() == 2 * (tmp_path / "there.npy").read_bytes()
    piped = subprocess.run([COMMAND, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, check=True, timeout=60)
    assert piped.stdout == (tmp_path / "there.npy").read_bytes()
    (tmp_path / "link.npy").symlink_to("target.npy")
    assert run_files(convoy, y="link.npy") == (0, "", "")
    assert (tmp_path / "link.npy").is_symlink()
    np.testing.assert_array_equal(np.load(tmp_path / "target.npy"), expected(files))
    assert not list(tmp_path.glob("**/.convoy*"))


def test_inputs_come_out_of_pipes(convoy, tmp_path, files):
    os.mkfifo(tmp_path / "pipe")
    refused(run_files(convoy, x="pipe"), "pipe: ", "without a writer")  # and does not wait for one
    refused(run_files(convoy, x="/dev/zero"), "neither a regular file nor a pipe")
    arguments = ["run", CHAIN, "--device", "ref", "--input", "/dev/stdin", *PARAMS, "--output", "y.npy"]
    whole = (tmp_path / "x.npy").read_bytes()
    subprocess.run([COMMAND, *arguments], cwd=tmp_path, input=whole, check=True, timeout=60)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected(files))


def test_check_takes_files(convoy, files):
    status, out, _ = convoy("check", CHAIN, "--device", "ref", "--input", "x.npy", *PARAMS, "--json")
    assert status == 0 and json.loads(out)["max_abs_error"] == 0
