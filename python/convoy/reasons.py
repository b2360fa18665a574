"""Why a module stays in PyTorch, as exceptions whose text `convoy.explain` prints."""


class Changed(Exception):
    """What a forward does besides making tensors."""


class Unseen(Exception):
    """What of its state cannot be looked at in every call."""
