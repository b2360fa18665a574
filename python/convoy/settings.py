"""What the user chose in compile(), and the library's options that follow from it on a device."""

import difflib
import os
from dataclasses import dataclass, field, fields

import torch
from torch import _C as native
from torch.utils._device import DeviceContext

from . import binding as b
from .engine import check_environment

PRECISIONS = ("fp32", "tf32", "torch")
REGIONS = ("faster", "all")
EFFORTS = {"estimate": b.CVY_ESTIMATE, "measure": b.CVY_MEASURE}
TRAININGS = ("auto", "eager", "recompute")
CHOICES = {"precision": PRECISIONS, "effort": tuple(EFFORTS), "training": TRAININGS, "regions": REGIONS}


def meant(word, words):
    """"; did you mean ...?", or nothing."""
    near = difflib.get_close_matches(str(word), words, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def autocast_state():
    """None outside of autocast, else its dtype on each device."""
    if not torch._C._is_any_autocast_enabled():
        return None
    return tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in ("cpu", "cuda"))


def function_modes():
    """The modes through which calls of PyTorch's functions pass now."""
    return [native._get_function_stack_at(i) for i in range(native._len_torch_function_stack())]


def only_devices():
    """Are all of these modes those of torch.set_default_device() and `with torch.device(...)`?"""
    return all(type(mode) is DeviceContext for mode in function_modes())


def default_devices():
    """The devices on which a forward creates tensors, if such a mode says so, else None."""
    return tuple(mode.device for mode in function_modes()) or None


def default_regions():
    """The environment's value; if it is wrong, an error in the style of the library's."""
    value = os.environ.get("CONVOY_REGIONS") or "faster"
    if value not in REGIONS:
        raise ValueError(f"convoy: CONVOY_REGIONS is {value!r}, expected {' or '.join(REGIONS)}{meant(value, REGIONS)}")
    return value


@dataclass(frozen=True)
class Settings:
    precision: str = "fp32"
    winograd: bool = True
    effort: str = "estimate"
    threads: int | None = None
    training: str = "auto"
    graphs: bool = False
    regions: str = field(default_factory=default_regions)

    @classmethod
    def of(cls, options):
        """From the keywords of compile(). An unknown name is an error that proposes the nearest one, and so is an invalid value
        of an environment variable: every region would stay in PyTorch."""
        check_environment()
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                raise TypeError(f"convoy.compile has no option {name!r}{meant(name, names) or ';'} it takes {', '.join(names)}")
        return cls(**options)

    def told(self):
        """The choices as compile()'s keywords: the precision, and everything that is not the default."""
        plain = Settings()
        chosen = [f.name for f in fields(self) if f.name == "precision" or getattr(self, f.name) != getattr(plain, f.name)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in chosen)

    def __post_init__(self):
        for name, words in CHOICES.items():
            given = getattr(self, name)
            if given not in words:
                raise ValueError(f"convoy.compile: {name} takes {', '.join(words)}, not {given!r}{meant(given, words)}")
        for name in ("winograd", "graphs"):
            if getattr(self, name) not in (True, False):
                raise ValueError(f"convoy.compile: {name} takes True or False, not {getattr(self, name)!r}")
        if self.threads is not None and not (isinstance(self.threads, int) and self.threads >= 1):
            raise ValueError(f"convoy.compile: threads takes a whole number, at least 1, not {self.threads!r}")

    def ambient(self):
        """The part of PyTorch's global state that a capture or its plans depend on."""
        if self.precision == "torch":
            tf32 = torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
            return torch.get_num_threads(), tf32, autocast_state(), default_devices()
        return torch.get_num_threads(), autocast_state(), default_devices()

    def surroundings(self):
        """The part of PyTorch's global state that a forward may depend on."""
        return self.ambient(), torch.get_default_dtype(), torch.is_inference_mode_enabled()

    def options(self, device):
        """Keywords of engine.Plan for a torch.device."""
        tf32 = self.precision == "tf32" or (self.precision == "torch" and self.ambient()[1])
        return {
            "device": device.type,
            "ordinal": device.index or 0,
            "precision": b.CVY_TF32 if tf32 and device.type == "cuda" else b.CVY_FP32,
            "effort": EFFORTS[self.effort],
            "threads": self.threads or torch.get_num_threads(),
            "winograd": b.CVY_DEFAULT if self.winograd else b.CVY_OFF,
        }
