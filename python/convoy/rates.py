"""What operators cost, by device and kind: numbers for the formulas of worth.py. Written by bench/modules/fit.py from what
bench/modules/eager.py measured; the comments name machine, date and command. Kinds are those of work.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """Of PyTorch's kernels for a kind ("eager"), or of regions whose heaviest operator is of that kind ("convoy")."""

    host: float  # seconds to issue a call, where the device runs by itself
    start: float  # seconds before anything is done
    small: float  # bytes a second, of those that fit the cache
    large: float  # bytes a second, of those beyond
    flops: float  # operations a second (eager)
    full: float  # results that fill half of the device (eager)
    factor: float  # times the plan's seconds of arithmetic (convoy)


RATES = {

}
