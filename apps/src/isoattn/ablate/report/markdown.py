"""Blocks as Markdown; charts are files in ``figures/`` beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from isoattn.ablate.report.blocks import Block, Bullets, Chart, Heading, Listing, Table, Text

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def to_markdown(title: str, blocks: Iterable[Block]) -> str:
    """The whole document, ending with a newline."""
    parts = [f"# {escape(title)}"]
    parts += [part for block in blocks if (part := _block(block))]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is; one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {escape(text)}"
        case Text(text, kind):
            if kind == "warning":
                return f"> **{escape(text)}**"
            return f"**{escape(text)}**" if kind == "verdict" else escape(text)
        case Bullets(items, _):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Table():
            return _table(block)
        case Chart(name, _, alt, caption):
            return f"![{escape(alt)}](figures/{name}.svg)\n\n*{escape(caption)}*"
        case Listing(text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return f"{fence}text\n{text.rstrip()}\n{fence}"


def _table(block: Table) -> str:
    heads = block.heads
    lines = [
        _line([text for text, _ in heads]),
        "|" + "|".join("---:" if number else "---" for _, number in heads) + "|",
    ]
    for title, rows in block.groups:
        if title:
            lines.append(f"| **{escape(title)}** |" + " |" * (len(heads) - 1))
        lines += [_line(row) for row in rows]
    text = "\n".join(lines)
    return f"{text}\n\n*{escape(block.caption)}*" if block.caption else text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
