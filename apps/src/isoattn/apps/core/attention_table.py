"""``isoattn attentions``: what there is, on the terminal or as ``docs/attention.md``.

isoattn attentions --markdown > docs/attention.md
"""

from __future__ import annotations

import re
import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.apps.base.errors import UserError, near
from isoattn.apps.core.arguments import Parser
from isoattn.apps.core.founding import CORRECTIONS, INTRODUCTION, SURVEY, Mechanism
from isoattn.apps.core.inventory import TOKENS, Entry, entries

_DESCRIPTION = """\
Every attention and mixer of isoattn.core: equation, forms, masks, cost, source, test.

  isoattn attentions
  isoattn attentions Linear
  isoattn attentions --markdown > docs/attention.md
"""

_HEAD = """\
# Every attention, and where to find it

<!-- Generated: isoattn attentions --markdown > docs/attention.md. A test keeps it so. -->

Written by `isoattn attentions --markdown` from the classes themselves; the laws that
`packages/core/tests/test_conformance.py` generates from the declared forms hold for every row.

- **Forms**: a *state* continues the causal form over chunks of any length and steps of one token.
- **Cost**: order in the number of tokens N and forward GFLOP at N = {small:,} / {large:,}, batch 1,
  4 heads of 64, from `cost`, which equals torch's counter. *State* is in bytes of float32 for all
  heads. A mixer's cost is that of the whole layer, 256 channels, projections included; MultiHead
  costs its projections (0.537 / 8.59 GFLOP there) and its attention.
- **Not defined** means that asking raises `UnsupportedAttention` with the reason given below.
"""


def run_attentions(argv: list[str]) -> int:
    """Run ``isoattn attentions``; returns the exit status."""
    parser = Parser("isoattn attentions", _DESCRIPTION)
    parser.add_argument("name", nargs="?", help="one class in full")
    parser.add_argument("--markdown", action="store_true", help="the page docs/attention.md")
    options = parser.parse_args(argv)
    found = entries()
    if options.name is not None:
        by_name = {e.name: e for e in found}
        if options.name not in by_name:
            raise UserError(f"There is no {options.name!r}. {near(options.name, by_name)}")
        sys.stdout.write("\n".join(_section(by_name[options.name], link=False)) + "\n")
    elif options.markdown:
        sys.stdout.write(markdown(found))
    else:
        _print(found)
    return 0


def _print(found: list[Entry]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("", "forms", "cost", "what"):
        table.add_column(Text(column), no_wrap=column != "what")
    for e in found:
        cost = e.costs.text if e.costs else "-"
        table.add_row(*map(Text, (e.name, _letters(e), cost, e.summary)))
    console.print(table)
    console.print(
        "b bidirectional, c causal, x cross, s constant state, S growing state, m key mask. "
        "isoattn attentions NAME tells all of one.",
        markup=False,
        highlight=False,
    )


def _letters(e: Entry) -> str:
    c = e.capability
    if c is None:
        return "any"
    state = {"none": " ", "constant": "s", "growing": "S"}[c.state]
    flags = {"b": c.bidirectional, "c": c.causal, "x": c.cross}
    shown = "".join(letter if has else " " for letter, has in flags.items())
    return shown + state + ("m" if c.key_mask else " ")


def markdown(found: list[Entry]) -> str:
    """The whole page."""
    lines = [_HEAD.format(small=TOKENS[0], large=TOKENS[-1])]
    for kind, title in (("attention", "Attentions"), ("mixer", "Mixers")):
        lines += [f"## {title}", "", *_overview([e for e in found if e.kind == kind]), ""]
    lines += [*_map(found), "## Class by class", ""]
    for e in found:
        lines += [*_section(e, link=True), ""]
    return "\n".join(lines).rstrip() + "\n"


def _overview(found: list[Entry]) -> list[str]:
    lines = [
        "| class | equation | forms | masks | cost | GFLOP | state | test |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for e in found:
        cost, gflop, state = "-", "-", "-"
        if e.costs is not None:
            cost = e.costs.text.replace("^2", "²")
            gflop = " / ".join(f"{x:.3g}" for x in e.costs.gflop)
            state = _state(e)
        cells = [
            f"[{e.name}](#{e.name.lower()})",
            _escaped(e.summary),
            e.forms,
            e.masks,
            cost,
            gflop,
            state,
            _test(e),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _state(e: Entry) -> str:
    if e.costs is None or not any(e.costs.state):
        return "-"
    first, last = e.costs.state[0], e.costs.state[-1]
    return f"{last:,}" if first == last else f"{first:,} / {last:,}"


def _escaped(text: str) -> str:
    """Docstring text as Markdown: roles and double backquotes as code, the rest without markup."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)  # code stands at the odd places
    plain = [re.sub(r"([|*<\[~])", r"\\\1", part) for part in parts[::2]]
    code = [part.replace("|", r"\|") for part in parts[1::2]]
    return "".join(x for pair in zip(plain, [*code, ""], strict=True) for x in pair)


def _test(e: Entry) -> str:
    if not e.test:
        return "-"
    return f"[{e.test.rsplit('/', 1)[-1]}](../{e.test})"


def _section(e: Entry, *, link: bool) -> list[str]:
    """One class in full."""
    file = f"[{e.module}](../{e.module})" if link else e.module
    test = (f"[{e.test}](../{e.test})" if link else e.test) if e.test else "-"
    lines = [f"### {e.name}", ""]
    for paragraph in (e.summary, *e.details):
        lines += [_escaped(paragraph) if link else paragraph, ""]
    rows = {
        "Source": e.source,
        "Forms": f"{e.forms}; masks: {e.masks}",
        "Gates": _gates(e),
        "Not defined": "; ".join(f"{k.replace('_', ' ')}: {v}" for k, v in e.unsupported.items()),
        "Options": ", ".join(f"`{o}`" for o in e.options) if link else ", ".join(e.options),
        "Rows": _rows(e),
        "Kept for the backward pass": f"{e.costs.saved:,} bytes a token" if e.costs else "",
        "Released code": e.released,
        "Code": file,
        "Test": test,
    }
    for title, text in rows.items():
        if text:
            shown = _escaped(text) if link and title in ("Released code", "Not defined") else text
            lines.append(f"- **{title}**: {shown}" if link else f"  {title}: {shown}")
    return lines


def _gates(e: Entry) -> str:
    c = e.capability
    if c is None:
        return ""
    found = [f"log_decay, one a {c.log_decay}"] if c.log_decay != "none" else []
    return ", ".join([*found, *(["in_gate"] if c.in_gate else [])])


def _rows(e: Entry) -> str:
    c = e.capability
    if c is None or e.kind == "mixer":
        return ""
    if c.mixes != "tokens":
        return f"it mixes {c.mixes}"
    return "sum to 1" if c.normalised else "not normalised"


def _map(found: list[Entry]) -> list[str]:
    """From the two founding pages to class and test, and what is corrected in them."""
    by_name = {e.name: e for e in found}
    lines = [
        "## From the two founding pages",
        "",
        "*Linear Attention Mechanisms* is an introduction, *Linear attention* a survey of eight "
        "papers. Each mechanism they name, the class that is it, and the test that shows it.",
        "",
    ]
    for title, mechanisms in (
        ("Linear Attention Mechanisms", INTRODUCTION),
        ("Linear attention", SURVEY),
    ):
        lines += [f"### {title}", "", "| mechanism | class | test | note |", "|---|---|---|---|"]
        lines += [_mechanism(m, by_name) for m in mechanisms]
        lines.append("")
    lines += ["### Corrections to them", ""]
    for number, (text, names) in enumerate(CORRECTIONS, 1):
        tests = dict.fromkeys(_test(by_name[n]) for n in names if n in by_name)
        lines.append(f"{number}. {_escaped(text)} {', '.join(tests)}".rstrip())
    return [*lines, ""]


def _mechanism(m: Mechanism, by_name: dict[str, Entry]) -> str:
    classes: list[str] = []
    tests: dict[str, None] = {}
    for name in m.names:
        short = re.split(r"[.(]", name)[0]
        if short in by_name:
            classes.append(f"[{_escaped(name)}](#{short.lower()})")
            tests[_test(by_name[short])] = None
        elif short in ("Attention", "Capability"):
            classes.append(f"`{name}`")
            tests["[test_conformance.py](../packages/core/tests/test_conformance.py)"] = None
        else:
            classes.append(f"{name} (not in this version)")
    return (
        f"| {_escaped(m.what)} | {', '.join(classes)} | {', '.join(tests)} | {_escaped(m.note)} |"
    )
