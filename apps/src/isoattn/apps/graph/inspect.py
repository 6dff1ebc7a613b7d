"""``isoattn graph inspect``: what a graph is and what is odd about it, before any training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_atomic
from isoattn.apps.base.parser import ParseError, ShortErrorParser, shorten
from isoattn.apps.core.arguments import Parser
from isoattn.apps.graph.inspect_figures import with_figures
from isoattn.apps.graph.sources import source_spec
from isoattn.core.factories import find
from isoattn.graph.data import Finding, NodeData, Report, inspect_task
from isoattn.graph.data.source import TaskSource
from isoattn.graph.task import NodeTask

_DESCRIPTION = """\
What a graph is and what is odd about it: sizes, classes and parts, degrees, homophily, isolated
nodes, rows of zeros, what was dropped, absent classes, overlapping parts.

  isoattn graph inspect                                  the data of the default config
  isoattn graph inspect --config cora --data.source.root FOLDER
  isoattn graph inspect nodes.csv edges.csv --label_column kind --split_column part
  isoattn graph inspect graph.graphml --label club
  isoattn graph inspect data.npz --split.kind random
  isoattn graph inspect FOLDER                           nodes.csv and edges.csv in it

Files come first; options after them are those of their source. Without files the options are those
of isoattn graph fit. The exit status is 2 where there is an error, that is something which spoils a
result, and 0 otherwise, warnings or not.
"""


def run_inspect(argv: list[str]) -> int:
    """Run ``isoattn graph inspect``; returns the exit status: 2 with errors, else 0."""
    files, out, rest = _split(argv)
    source = source_of_files(files, rest) if files else data_of("fit", rest).source
    task, report = look(source)
    from isoattn.apps.graph.inspect_report import print_report

    print_report(report, task)
    if out is not None:
        written = _write(out, report, task)
        sys.stdout.write(f"written {out}: {', '.join(written)}\n")
    return 2 if report.errors else 0


def look(source: TaskSource) -> tuple[NodeTask | None, Report]:
    """The task and the report on it; what loading refuses is an error of the report.

    Raises:
        UserError: files that are not there.
    """
    try:
        task = source.load()
    except FileNotFoundError as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        return None, Report(type(source).__name__, {}, (Finding("error", "load", str(error)),))
    return task, with_figures(inspect_task(task), task)


def source_of_files(files: list[str], argv: Sequence[str]) -> TaskSource:
    """The source that reads files of the user's.

    Args:
        files: as :func:`isoattn.apps.graph.sources.source_spec` takes them.
        argv: options of that source.

    Raises:
        UserError: files or options that do not fit.
    """
    spec = source_spec(files)
    cls = find(spec["class_path"].rsplit(".", 1)[-1], TaskSource, "source")
    parser = ShortErrorParser(prog="isoattn graph inspect FILE ...", allow_abbrev=False)
    parser.add_class_arguments(cls, skip=set(spec["init_args"]))
    try:
        options: Any = parser.instantiate(parser.parse_args(list(argv)))
        source: TaskSource = cls(**spec["init_args"], **vars(options))
    except ParseError as error:
        message = shorten(str(error), error.options, argv)
        if message.startswith("There is no option") and "Did you mean" not in message:
            message += f" {cls.__name__} has --{', --'.join(vars(parser.get_defaults()))}."
        raise UserError(message) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    return source


def data_of(subcommand: str, argv: Sequence[str]) -> NodeData:
    """The data module of a command line of the app; nothing else is built.

    Args:
        subcommand: whose options these are.
        argv: the options.

    Raises:
        UserError: what the app or the data refuse.
    """
    from isoattn.apps.base.study import resolve  # Lightning is slow to import
    from isoattn.apps.graph.app import GraphCLI

    config = resolve(GraphCLI, [subcommand, *argv])
    parser = ShortErrorParser(prog="isoattn graph")
    parser.add_subclass_arguments(NodeData, "data")
    try:
        data: NodeData = parser.instantiate(parser.parse_object({"data": config["data"]})).data
    except ParseError as error:
        raise UserError(shorten(str(error), error.options, argv)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    return data


def _split(argv: Sequence[str]) -> tuple[list[str], Path | None, list[str]]:
    """Leading file names, ``--out``, and the rest."""
    parser = Parser("isoattn graph inspect", _DESCRIPTION)
    parser.usage = "isoattn graph inspect [FILE ...] [--out DIR] [options of the data]"
    parser.add_argument("--out", type=Path, help="folder for report.json and data.png")
    own, rest = parser.parse_known_args(list(argv))
    first = next((i for i, token in enumerate(rest) if token.startswith("-")), len(rest))
    return rest[:first], own.out, rest[first:]


def _write(folder: Path, report: Report, task: NodeTask | None) -> list[str]:
    write_atomic(folder / "report.json", report.to_json() + "\n")
    if task is None:
        return ["report.json"]
    from isoattn.apps.graph.picture_data import data_picture  # matplotlib is slow to import

    write_atomic(folder / "data.png", data_picture(task))
    return ["report.json", "data.png"]
