"""Reading the project's own text for the tidy rules: files, syntax trees, imports."""

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.processes import PROJECT

SRC = PROJECT / "src"
PACKAGE = SRC / "duly"
# Written by a program, not by us.
GENERATED = {"src/duly/store/schema.sql", "constraints.txt"}


@dataclass(frozen=True)
class Module:
    """One Python file, parsed."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def where(self) -> str:
        return str(self.path.relative_to(PROJECT))

    @property
    def package(self) -> str:
        """The package under `src/duly`, or the module's own name if it is in none."""
        return self.name.split(".")[1] if "." in self.name else "duly"

    @property
    def docstrings(self) -> set[int]:
        """Identities of the constants that are documentation."""
        owners = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return {
            id(owner.body[0].value)
            for owner in owners
            if owner.body and isinstance(owner.body[0], ast.Expr)
        }


def parse_module(path: Path, base: Path) -> Module:
    relative = path.relative_to(base).with_suffix("")
    name = ".".join(relative.parts).removesuffix(".__init__")
    text = path.read_text("utf-8")
    return Module(path, name, text, ast.parse(text))


@cache
def source_modules() -> list[Module]:
    return [parse_module(path, SRC) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def all_modules() -> list[Module]:
    others = [PROJECT / "tests", PROJECT / "benchmarks"]
    paths = [path for folder in others for path in sorted(folder.rglob("*.py"))]
    return source_modules() + [parse_module(path, PROJECT) for path in paths]


@cache
def imports_of(module: Module) -> frozenset[str]:
    """Full names of what a module imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@cache
def source_names() -> frozenset[str]:
    return frozenset(module.name for module in source_modules())


@cache
def modules_imported(module: Module) -> frozenset[str]:
    """Which of our modules those names lead to."""
    known = source_names()
    found = set()
    for name in imports_of(module):
        if name.partition(".")[0] == "duly":
            found.add(name if name in known else name.rpartition(".")[0])
    return frozenset(found - {module.name})


@cache
def project_files() -> list[Path]:
    """Everything git has or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        paths = [PROJECT / name for name in answer.stdout.split("\0") if name]
    else:
        # No git here, or a checkout that belongs to somebody else: look at the folders themselves.
        folders = [PROJECT / name for name in ("src", "tests", "docs", "benchmarks")]
        paths = [path for folder in folders for path in folder.rglob("*")]
        paths += PROJECT.glob("*.*")
    found = [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    assert found, "rules about no files at all would hold"
    return found


def dotted(node: ast.expr) -> str:
    """`datetime.now` for an attribute chain; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""
