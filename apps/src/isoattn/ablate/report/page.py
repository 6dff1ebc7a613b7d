"""Blocks as one self-contained HTML page: no script, no external file, light, dark and print."""

from __future__ import annotations

import html
from collections.abc import Iterable

from isoattn.ablate.report import style
from isoattn.ablate.report.blocks import Block, Bullets, Chart, Heading, Listing, Table, Text

_CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #1b1f27; --soft: #5b6471; --grid: #dfe3e8; --band: #eef1f5;
  --accent: #0072b2; --warn: #9a4b00; --warn-paper: #fff4e5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171c; --ink: #e6e9ee; --soft: #a3acb9; --grid: #353b45; --band: #232830;
    --accent: #58a9dc; --warn: #ffc078; --warn-paper: #33261a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.2rem 1.25rem 4rem; max-width: 61rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 {
  font-size: 1.12rem; margin: 2.4rem 0 .6rem; padding-top: .7rem;
  border-top: 1px solid var(--grid);
}
p, ul { margin: .55rem 0; max-width: 48rem; }
ul { padding-left: 1.2rem; }
li { margin: .2rem 0; overflow-wrap: anywhere; }
.note, .caption, figcaption { color: var(--soft); font-size: .86rem; line-height: 1.45; }
.verdict {
  border-left: 4px solid var(--accent); background: var(--band);
  padding: .7rem 1rem; border-radius: 0 4px 4px 0; max-width: none;
}
ul.verdict { list-style: none; }
ul.verdict li + li { margin-top: .55rem; }
.warning {
  border-left: 4px solid var(--warn); background: var(--warn-paper); color: var(--warn);
  padding: .45rem 1rem; border-radius: 0 4px 4px 0; font-weight: 600; max-width: none;
}
figure { margin: 1rem 0; }
.wide { overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 38rem; height: auto; }
figure svg * { stroke-linejoin: round; }
figcaption { margin-top: .35rem; max-width: 48rem; }
table {
  border-collapse: collapse; font-size: .8rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; margin: .4rem 0;
}
th, td { padding: .28rem .42rem; text-align: left; vertical-align: top; }
th:first-child, td:first-child { padding-left: 0; }
th.n, td.n { text-align: right; }
td { white-space: nowrap; }
td.long { white-space: normal; min-width: 14rem; }
thead th {
  color: var(--soft); font-weight: 600; vertical-align: bottom;
  border-top: 1.5px solid var(--ink); border-bottom: 1px solid var(--ink);
}
tbody:last-child tr:last-child td { border-bottom: 1.5px solid var(--ink); }
tr.group th { padding-top: .65rem; }
pre {
  background: var(--band); padding: .7rem .9rem; border-radius: 4px; overflow-x: auto;
  font: .8rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
}
@media (max-width: 40rem) { body { padding: 1.2rem .9rem 3rem; } h1 { font-size: 1.35rem; } }
@media print {
  :root {
    --paper: #fff; --ink: #000; --soft: #444; --grid: #ccc; --band: #f2f2f2;
    --warn: #7a3b00; --warn-paper: #fff; --accent: #0072b2;
  }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; }
  figure, tr, pre, .verdict { break-inside: avoid; }
  .wide { overflow: visible; }
  figure svg { min-width: 0; }
  pre { white-space: pre-wrap; }
}
"""


def to_html(title: str, blocks: Iterable[Block]) -> str:
    """The whole page."""
    body = "\n".join(_block(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def escape(text: str) -> str:
    """Text as HTML; a number and its sign stay on one line."""
    text = html.escape(text, quote=True)
    for loose in (" %", " ±", "± ", "p = ", "p &lt; "):
        text = text.replace(loose, loose.replace(" ", "\N{NO-BREAK SPACE}"))
    return text


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Text(text, kind):
            return f"<p{_kind(kind)}>{escape(text)}</p>"
        case Bullets(items, kind):
            lines = "".join(f"<li>{escape(item)}</li>" for item in items)
            return f"<ul{_kind(kind)}>{lines}</ul>"
        case Table():
            return _table(block)
        case Chart(name, svg, alt, caption):
            picture = style.inline(svg, name, escape(alt))
            return (
                f'<figure><div class="wide">{picture}</div>'
                f"<figcaption>{escape(caption)}</figcaption></figure>"
            )
        case Listing(text):
            return f"<pre>{html.escape(text.rstrip())}</pre>"  # To be copied: no special blanks.


def _kind(kind: str) -> str:
    return "" if kind == "plain" else f' class="{kind}"'


def _table(block: Table) -> str:
    heads = block.heads
    kinds = [' class="n"' if number else "" for _, number in heads]
    head = "".join(
        f'<th scope="col"{kind}>{escape(text)}</th>'
        for (text, _), kind in zip(heads, kinds, strict=True)
    )
    bodies = []
    for title, rows in block.groups:
        span = f'<tr class="group"><th colspan="{len(heads)}">{escape(title)}</th></tr>'
        lines = "".join(
            "<tr>"
            + "".join(_cell(cell, kind) for cell, kind in zip(row, kinds, strict=True))
            + "</tr>"
            for row in rows
        )
        bodies.append(f"<tbody>{span if title else ''}{lines}</tbody>")
    caption = f'<p class="caption">{escape(block.caption)}</p>' if block.caption else ""
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>{"".join(bodies)}</table></div>'
        f"{caption}"
    )


def _cell(text: str, kind: str) -> str:
    # Error lines and lists of versions may wrap; names and numbers may not.
    kind = ' class="long"' if len(text) > 40 else kind
    return f"<td{kind}>{escape(text)}</td>"
