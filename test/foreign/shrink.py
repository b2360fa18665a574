"""Makes a failing chain small: leaves out outputs and stages, and takes smaller extents, while it still fails."""

import itertools
import re

NUMBER = re.compile(r"\d+")


def without_stage(stages, i):
    """Stage i left out; who read it by name reads the one before it."""
    name = re.search(r" @(\w+)$", stages[i])
    before = next((m[1] for s in reversed(stages[:i]) if (m := re.search(r"@(\w+)$", s))), None)
    rest = stages[:i] + stages[i + 1 :]
    if name:
        rest = [re.sub(rf"@{name[1]}\b", f"@{before or 'x'}", s) if k >= i else s for k, s in enumerate(rest)]
    return rest


def smaller(text):
    """Shorter chains first, then smaller numbers, one at a time; most of them are not legal."""
    first, *stages = text.split(" | ")
    if len(stages) > 1:
        for i in reversed(range(len(stages))):
            yield " | ".join([first, *without_stage(stages, i)])
        for i in range(1, len(stages)):
            yield " | ".join([first, *stages[:i]])
    if "," in first.partition("]")[2]:
        yield " | ".join([first.partition("]")[0] + "]", *stages])
    for i, stage in enumerate(stages):  # arguments with a default
        for argument in re.findall(r",?\w+=(?:\([^)]*\)|[^,)]*)", stage):
            yield " | ".join([first, *stages[:i], stage.replace(argument, "", 1), *stages[i + 1 :]])
    for extent in sorted({int(n) for n in NUMBER.findall(first)}, reverse=True):  # everywhere at once: shapes fit
        for less in [1, 2, extent // 2, extent - 1]:
            if 0 < less < extent:
                yield re.sub(rf"(?<![\w.]){extent}(?![\w.])", str(less), text)
    for match in NUMBER.finditer(text):
        if text[match.start() - 1] not in "[,(=":
            continue
        for less in {1, int(match[0]) // 2, int(match[0]) - 1}:
            if 0 < less < int(match[0]):
                yield text[: match.start()] + str(less) + text[match.end() :]


def shrink(text, fails, most=400):
    """The smallest chain found within `most` attempts."""
    attempts = itertools.count()
    again = True
    while again:
        again = False
        for candidate in smaller(text):
            if next(attempts) >= most:
                return text
            if len(candidate) <= len(text) and candidate != text and fails(candidate):
                text, again = candidate, True
                break
    return text
