"""Chains by number: drawn, run on every engine between guard bands, judged by PyTorch, shrunk where they fail.

    campaign.py 0:1200                        chains 0 to 1199, under every instruction set or CVY_ISA's
    campaign.py 17                            one of them
    campaign.py 'x[2,3] | relu' -d special    a chain of your own; -s: the seed of its numbers
    campaign.py 0:24 --emulated               the short ones of them, with kernels for the GPU on the emulator
"""

import argparse
import os
import random
import sys
import warnings
from dataclasses import dataclass

import torch

import data
import draw
import emulated
from explained import explained, refused
from guarded import ConvoyError, Parsed, Plan, environment, instruction_sets
from judge import Judge
from shrink import shrink

KIND_WEIGHTS = {"normal": 8, "integer": 2, "offset": 2, "special": 5}
EMULATED_KINDS = ("normal", "integer", "offset")  # what GPU kernels do with infinities is test_cuda_special's
SHORT = 6  # stages of a chain for the emulator: each may be a kernel to compile


@dataclass
class Setting:
    """How a chain is run: the device and its options, how its buffers lie."""

    device: str
    isa: str | None
    options: dict
    layout: dict

    def __str__(self):
        return f"{self.device} {self.isa} {self.options}" if self.isa else self.device

    def command(self, text, seed, kind):
        words = [f"CVY_ISA={self.isa}"] if self.isa else []
        words += [f"CVY_PLAN_SEED={self.options['seed']}"] if self.options.get("seed") else []
        words += ["convoy", "check", f"'{text}'", f"--device {self.device}"]
        words += [f"--threads {self.options['threads']}"] if self.options.get("threads") else []
        words += [f"--data {kind if kind in ('normal', 'integer', 'special') else 'normal'} --seed {seed}"]
        return " ".join(words)


def settings(seed, isas):
    """The reference and the CPU under each instruction set; ["cuda"]: kernels for the GPU alone."""
    r = random.Random(f"setting {seed}")
    layout = {"spread": r.choice((1, 1, 1, 1, 2)), "shift": r.choice((0, 0, 1, 3)), "runs": r.choice((1, 2))}
    options = {"threads": r.choice((1, 2, 3)), "seed": r.choice((0, 0, r.randrange(1, 10_000)))}
    options |= {"fuse": 2} if r.random() < 0.05 else {}
    if isas == ["cuda"]:
        return [Setting("cuda", None, {"seed": options["seed"]}, {})]
    return [Setting("ref", None, {}, layout), *(Setting("cpu", isa, options, layout) for isa in isas)]


class Case:
    """A chain with its numbers, and PyTorch's answer."""

    def __init__(self, text, kind, seed):
        self.text, self.kind, self.seed = text, kind, seed
        self.graph = Parsed(text)
        self.arrays = {name: data.tensor(kind, seed, name, shape) for name, shape in self.graph.sources}
        self.judge = Judge(text, self.arrays)

    def run(self, setting, **changed):
        with environment(CVY_ISA=setting.isa):
            plan = Plan(self.graph, setting.device, **setting.options | changed)
            return plan.run(self.arrays, **setting.layout) if setting.device != "cuda" else (emulated.run(plan, self.arrays), [])

    def complaints(self, setting):
        """What is wrong with a setting's results, memory and bits."""
        try:
            gots, found = self.run(setting)
            found += self.judge.verdict(gots, setting.device == "ref")
            if setting.options.get("threads") == 3:
                others, _ = self.run(setting, threads=1)
                if any(a.tobytes() != b.tobytes() for a, b in zip(gots, others)):
                    found.append("other bits with one thread")
        except ConvoyError as error:
            return [f"refused: {error}"]
        return found


def kind_of(seed, kinds):
    return random.Random(f"kind {seed}").choices(list(kinds), [KIND_WEIGHTS.get(k, 1) for k in kinds])[0]


def fails(text, kind, seed, setting):
    """Whether a chain made smaller is legal for both sides and still wrong."""
    try:
        return bool(Case(text, kind, seed).complaints(setting))
    except (ConvoyError, *draw.REFUSED, KeyError, SyntaxError, AttributeError, AssertionError):
        return False


def report(case, failures):
    """One line about what is wrong, the chain made small, and two commands: the library's own check, and this one."""
    setting, found = failures[0]
    small = shrink(case.text, lambda text: fails(text, case.kind, case.seed, setting))
    print(f"FAILED {case.seed}: {', '.join(str(s) for s, _ in failures)}: {'; '.join(found)}", f"  drawn: {case.text}", sep="\n")
    if small != case.text:
        print(f"  small: {small}: {'; '.join(Case(small, case.kind, case.seed).complaints(setting))}")
    print(f"  check: {setting.command(small, case.seed, case.kind)}")
    print(f"  again: {setting.isa and f'CVY_ISA={setting.isa} ' or ''}.venv/bin/python test/foreign/campaign.py '{small}' "
          f"-d {case.kind} -s {case.seed}{' --emulated' if setting.device == 'cuda' else ''}", flush=True)  # fmt: skip


def check(text, kind, seed, isas):
    """Runs one chain under all settings; says whether it is right under all of them."""
    try:
        case = Case(text, kind, seed)
    except ConvoyError as error:
        if refused(str(error)):
            return True
        print(f"FAILED {seed}: refused, and PyTorch takes it: {error}\n  drawn: {text}", flush=True)
        return False
    results = [(setting, case.complaints(setting)) for setting in settings(seed, isas)]
    failures = [(setting, found) for setting, found in results if found]
    if failures and explained(case):
        return True
    if failures:
        report(case, failures)
    return not failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help="a number, a range first:end, or a chain")
    parser.add_argument("-d", "--data", choices=data.KINDS, default="normal")
    parser.add_argument("-s", "--seed", type=int, default=0)
    parser.add_argument("-e", "--emulated", action="store_true")
    parser.add_argument("-p", "--progress", help="a file that names the chain being run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Using padding='same'")
    isas = ["cuda"] if args.emulated else instruction_sets()
    if args.emulated:
        emulated.install()
    if "[" in args.what:
        return check(args.what, args.data, args.seed, isas)
    first, _, end = args.what.partition(":")
    failed, seeds = 0, range(int(first), int(end or int(first) + 1))
    progress = os.open(args.progress, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if args.progress else None
    for seed in seeds:
        text, kind = draw.draw(seed), kind_of(seed, EMULATED_KINDS if args.emulated else data.KINDS)
        if args.emulated and text.count("|") > SHORT:
            continue
        if progress is not None:
            os.pwrite(progress, f"{seed} {kind} {text}\n".ljust(4096).encode(), 0)
        failed += not check(text, kind, seed, isas)
    print(f"{len(seeds)} chains, {failed} failed")
    return not failed


if __name__ == "__main__":
    sys.exit(not main())
