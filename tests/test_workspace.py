"""The workspace: one namespace, arrows one way, nothing that names a host or a machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    "core": ROOT / "packages/core/src/isoattn",
    "vision": ROOT / "packages/vision/src/isoattn",
    "graph": ROOT / "packages/graph/src/isoattn",
    "wsi": ROOT / "packages/wsi/src/isoattn",
    "matching": ROOT / "packages/matching/src/isoattn",
    "apps": ROOT / "apps/src/isoattn",
}
DOMAINS = {"vision", "graph", "wsi", "matching"}
TRACKERS = {"wandb", "tensorboard"}


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_no_member_has_an_init_at_the_namespace_root() -> None:
    stray = [
        str(path.relative_to(ROOT))
        for source in SOURCES.values()
        if (path := source / "__init__.py").exists()
    ]
    assert not stray, f"{stray} breaks every other member of the namespace: remove it"


def test_the_namespace_has_no_file_and_all_members_import() -> None:
    code = (
        "import isoattn.core, isoattn.vision, isoattn.graph, isoattn.wsi, isoattn.matching, "
        "isoattn.apps, isoattn.ablate; import isoattn; assert isoattn.__file__ is None"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_every_package_is_typed() -> None:
    for name, source in SOURCES.items():
        for package in [name] if name != "apps" else ["apps", "ablate"]:
            assert (source / package / "py.typed").is_file(), package


@pytest.mark.parametrize("member", sorted(DOMAINS | {"core"}))
def test_arrows_run_one_way(member: str) -> None:
    forbidden = {f"isoattn.{d}" for d in DOMAINS - {member}} | {"isoattn.apps", "isoattn.ablate"}
    for file in SOURCES[member].rglob("*.py"):
        for name in imports(file):
            parts = name.split(".")
            assert ".".join(parts[:2]) not in forbidden, f"{file.relative_to(ROOT)} imports {name}"
            assert parts[0] not in TRACKERS, f"{file.relative_to(ROOT)} imports {name}"


def test_core_imports_torch_alone() -> None:
    allowed = {"torch", "isoattn", "__future__"} | set(sys.stdlib_module_names)
    for file in SOURCES["core"].rglob("*.py"):
        for name in imports(file):
            assert name.split(".")[0] in allowed, f"{file.relative_to(ROOT)} imports {name}"


def test_constraints_name_no_host_and_no_path() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-", text, re.MULTILINE), "no index or editable options"
    assert not re.search(r"@|/(home|root|work|tmp|usr|opt)/", text)
    assert "torch==2.14.1" in text.splitlines()
    assert "torchvision==0.29.1" in text.splitlines()


def test_uv_lock_is_not_tracked() -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "uv.lock"], capture_output=True, text=True
    )
    assert listed.stdout == ""


def test_ci_runs_what_the_readme_says() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in script and "make check" in script
    assert "make test" in readme and "make demo" in readme
