"""Inline SVG: text, lines, axes, legends. Colours are the classes of the page's style."""

import html
import math

from .cases import OURS

WIDTH, HEIGHT = 440, 300
# Peers keep their colour in every figure; the style defines --p0 ... --p5 for light and dark.
FAMILIES = (OURS, "torch eager", "torch.compile", "onnxruntime", "openvino")


def esc(text):
    return html.escape(str(text), quote=True)


def text(x, y, content, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{esc(content)}</text>'


def line(x1, y1, x2, y2, kind="axis"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def svg(height, parts, label):
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{esc(label)}">'
            + "".join(parts) + "</svg>")


def family(peer):
    found = [i for i, name in enumerate(FAMILIES) if peer.startswith(name)]
    return f"p{found[0]}" if found else "p5"


def tick(value):
    """Short, and no two alike: 1e-05, 0.02, 5, 200, 5k, 0.2M."""
    if value < 1e-3:
        return f"{value:.0e}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


class LogAxes:
    """Log-log axes with decades as grid lines, or with as many lines as it takes to have three; or the given ticks."""

    left, right, top, bottom = 66, 12, 10, 42

    def __init__(self, xs, ys, x_title, y_title, height=HEIGHT, x_ticks=None, y_ticks=None):
        self.height = height
        self.x0, self.x1 = self._range(xs)
        self.y0, self.y1 = self._range(ys)
        self.parts, self.dots, self.names = [], [], []  # dots: where they are; names: (x, y, word, always) of some of them
        for v in x_ticks or self._ticks(self.x0, self.x1):
            self.parts += [line(self.x(v), self.top, self.x(v), height - self.bottom, "grid"),
                           text(self.x(v), height - self.bottom + 15, tick(v), "middle", "small")]
        for v in y_ticks or self._ticks(self.y0, self.y1):
            self.parts += [line(self.left, self.y(v), WIDTH - self.right, self.y(v), "grid"),
                           text(self.left - 5, self.y(v) + 4, tick(v), "end", "small")]
        self.parts += [text((self.left + WIDTH - self.right) / 2, height - 8, x_title, "middle", "small"),
                       f'<text transform="translate(14 {height / 2:.0f}) rotate(-90)" text-anchor="middle" '
                       f'class="small">{esc(y_title)}</text>']

    @staticmethod
    def _range(values):
        low, high = min(values), max(values)
        return low / 1.25, high * 1.25

    @staticmethod
    def _ticks(low, high):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1,), (1, 2, 5), range(1, 10)):
            ticks = [t for d in decades for m in digits if low <= (t := m * 10.0**d) <= high]
            if len(ticks) > 2:
                break
        return ticks

    def x(self, v):
        part = math.log(v / self.x0) / math.log(self.x1 / self.x0)
        return self.left + part * (WIDTH - self.left - self.right)

    def y(self, v):
        part = math.log(v / self.y0) / math.log(self.y1 / self.y0)
        return self.height - self.bottom - part * (self.height - self.top - self.bottom)

    def dot(self, x, y, kind, title, radius=3.5):
        self.dots.append((self.x(x), self.y(y)))
        self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}" class="dot {kind}">'
                          f"<title>{esc(title)}</title></circle>")

    def name(self, x, y, word, always=True):
        """Beside a dot, over all dots; unless `always`, only if there is room."""
        self.names.append((self.x(x), self.y(y), word, always))

    def _placed(self):
        """Names where they touch no dot and no other name: left, right, above or below their dot."""
        taken, parts = list(self.dots), []
        for x, y, word, always in sorted(self.names, key=lambda n: not n[3]):
            sides = [(x - 11, y), (x + 11, y), (x, y - 12), (x, y + 12)]
            free = [(a, b) for a, b in sides if all(abs(a - c) > 9 or abs(b - d) > 9 for c, d in taken)]
            if free or always:
                at = (free or sides)[0]
                taken.append(at)
                parts.append(text(at[0], at[1] + 4, word, "middle", "name"))
        return parts

    def names_after(self, ends, gap=14):
        """[(x, y, word)] of curves, right of their last dots: at least `gap` apart, from the top down."""
        below = -gap
        for x, y, word in sorted(ends, key=lambda end: self.y(end[1])):
            below = max(self.y(y) + 4, below + gap)
            self.parts.append(text(self.x(x) + 7, below, word, "start", "name"))

    def path(self, points, kind):
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{places}" class="curve {kind}"/>')

    def svg(self, label):
        return svg(self.height, self.parts + self._placed(), label)


def legend(names, kind=family):
    return '<p class="legend">' + " ".join(f'<span><i class="{kind(n)}"></i>{esc(n)}</span>' for n in names) + "</p>"
