"""Why a module stays in PyTorch, as exceptions whose text `convoy.explain` prints."""


class Changed(Exception):
    """The forward does something besides making tensors."""


class Unseen(Exception):
    """A part of the module's state cannot be checked in every call."""
