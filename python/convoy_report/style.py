"""The page's style: light, dark, narrow, printed."""

STYLE = """
:root{--bg:#fcfcfa;--fg:#1c1e21;--dim:#5d646e;--line:#d9dce0;--p0:#0a7d5a;--p1:#c2571a;--p2:#8e5bb5;--p3:#2f6fb3;
--p4:#a8851a;--p5:#777;--loss:#c22f3d}
@media screen and (prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e6e7e9;--dim:#9aa2ad;--line:#33383f;--p0:#3ecf9c;--p1:#f08c4f;
--p2:#bb8fe0;--p3:#6aaaf0;--p4:#dcb94a;--p5:#999;--loss:#ff6b78}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:1400px;background:var(--bg);color:var(--fg);font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.3em 0}h2{font-size:1.25rem;margin:1.6em 0 .4em}h3{font-size:1rem;margin:.2em 0}
.grid{display:grid;gap:1.2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr))}
figure{margin:0;padding:.8rem;border:1px solid var(--line);border-radius:8px;min-width:0}
figcaption,.dim{color:var(--dim);font-size:.85rem}figcaption p{margin:.3em 0}
svg{display:block;width:100%;height:auto;max-width:560px}svg text{fill:var(--fg);font:13px system-ui,sans-serif}
svg text.small{font-size:12.5px;fill:var(--dim)}
svg text.value{paint-order:stroke;stroke:var(--bg);stroke-width:3px}.tab>.grid+.grid{margin-top:1.2rem}
svg text.name{font-size:14px;font-weight:600;paint-order:stroke;stroke:var(--bg);stroke-width:3px}
.tab>details{margin:.8rem 0}
.axis{stroke:var(--fg);stroke-width:1}.grid-line,.grid line{stroke-width:1}line.grid{stroke:var(--line)}
.curve{fill:none;stroke-width:1.8}.roof{stroke:var(--fg);stroke-dasharray:5 4}
rect.p0{fill:var(--p0)}rect.p1{fill:var(--p1)}rect.p2{fill:var(--p2)}rect.p3{fill:var(--p3)}rect.p4{fill:var(--p4)}
rect.p5{fill:var(--p5)}rect.loss{fill:var(--loss)}
.dot{stroke-width:1.4}.p0{color:var(--p0)}.p1{color:var(--p1)}.p2{color:var(--p2)}.p3{color:var(--p3)}.p4{color:var(--p4)}
.p5{color:var(--p5)}.dot{fill:currentColor;stroke:currentColor}.dot.hollow{fill:var(--bg)}.dot.named{stroke:var(--fg)}.curve{stroke:currentColor}
.curve.roof{stroke:var(--dim)}
.legend{margin:.3em 0;font-size:.82rem;display:flex;flex-wrap:wrap;gap:.2em 1em}
.legend i{print-color-adjust:exact;-webkit-print-color-adjust:exact;display:inline-block;width:.7em;height:.7em;border-radius:50%;background:currentColor;margin-right:.35em}
pre,code{font:12px/1.4 ui-monospace,monospace}pre{overflow-x:auto;margin:.4em 0}code{overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
td,th{padding:.2em .7em;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
.both{display:grid;gap:1.2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.first{border:1px solid var(--line);border-radius:8px;padding:.6rem .9rem;min-width:0}.first h2{margin:.1em 0}.first p{margin:.3em 0}
.picture p{margin:.5em 0 0}.picture svg{max-width:520px}
input[name=tab]{position:absolute;opacity:0}label{display:inline-block;margin:1.2rem .3rem 0 0;padding:.3rem .9rem;
border:1px solid var(--line);border-radius:8px 8px 0 0;cursor:pointer}.tab{display:none;border-top:1px solid var(--line)}
input[name=tab]:checked+label{background:var(--p0);color:var(--bg)}input[name=tab]:focus-visible+label{outline:2px solid var(--fg)}
@media(max-width:480px){body{padding:.6rem}.first,figure{padding:.5rem}svg text.small{font-size:13.5px}svg text.name{font-size:15px}
label{padding:.25rem .6rem;margin-top:.5rem}}
@media print{:root{--bg:#fff;--fg:#000;--dim:#444;--line:#bbb}label{display:none}.tab{display:block}figure{break-inside:avoid}
details{display:none}}
td:first-child,th:first-child,td.l{text-align:left}tr.ours td{font-weight:600}
"""


def tab_style(tabs):
    """A tab is shown while its button is on; without a script."""
    return "".join(f"#tab-{d}-{p}:checked~#{d}-{p}{{display:block}}" for d, p in tabs)
