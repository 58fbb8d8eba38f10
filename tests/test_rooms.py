"""The rooms import only rooms before them, and the light ones stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "draftproof"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE
ROOMS = (
    "errors",
    "verify",
    "sampling",
    "models",
    "cache",
    "engine",
    "audit",
    "bench",
    "train",
    "export",
    "server",
    "cli",
)
TOOLS = ("audit", "bench", "train", "export")
"""Rooms over the engine, of which none imports another."""


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports from the package, wherever in the file it does so.

    `from a import b` counts as `a.b`, for b may be a module; names given to `import_module` and `__import__` as text
    count too.
    """
    parts = module.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = parts[: len(parts) - node.level + is_package]
                base = ".".join([*stem, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def faults(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a file of a room imports against the order."""
    room = module.split(".")[1]
    found = []
    for line, name in imported(ast.parse(source), module, is_package):
        parts = name.split(".")
        if parts[0] != PACKAGE:
            continue
        other = parts[1] if len(parts) > 1 else ""
        if other not in ROOMS:
            if other != "__version__":
                found.append(
                    f"{module}:{line} imports {name}: a room imports rooms, not the package around them"
                )
        elif ROOMS.index(other) > ROOMS.index(room):
            found.append(f"{module}:{line} imports {name}: {other} comes after {room}")
        elif room in TOOLS and other in TOOLS and other != room:
            found.append(f"{module}:{line} imports {name}: neither of {room} and {other} knows the other")
    return found


def module_of(file: Path) -> str:
    names = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= {*ROOMS, "drafters"}
    assert not list((SOURCE / "drafters").rglob("*.py")), "drafters that come with the package are data"
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room: str) -> None:
    wrong = [
        fault
        for file in sorted((SOURCE / room).rglob("*.py"))
        for fault in faults(file.read_text(encoding="utf-8"), module_of(file), file.name == "__init__.py")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("from draftproof.engine import LLM", "draftproof.models.target", False),
        ("import draftproof.cli.main", "draftproof.engine.llm", False),
        ("def f():\n    from draftproof import engine", "draftproof.models.target", False),
        ("from draftproof import LLM", "draftproof.cli.app", False),
        ("import draftproof", "draftproof.errors.base", False),
        ("from draftproof.audit import read_prompts", "draftproof.bench.prompts", False),
        ("from ..engine import llm", "draftproof.models.target", False),
        ("from .. import engine", "draftproof.models.target", False),
        ("from ..engine import llm", "draftproof.models", True),
        ("from ...engine import llm", "draftproof.models.drafters", True),
        (
            "from importlib import import_module\nimport_module('draftproof.engine')",
            "draftproof.verify.a",
            False,
        ),
        ("if TYPE_CHECKING:\n    from draftproof.models import target", "draftproof.verify.a", False),
        ("class A:\n    def f(self):\n        import draftproof.models as m", "draftproof.sampling.a", False),
    ],
)
def test_the_check_sees_every_way_of_importing(source: str, module: str, is_package: bool) -> None:
    assert len(faults(source, module, is_package)) == 1


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("from draftproof.verify import contract", "draftproof.engine.llm", False),
        ("from . import base", "draftproof.models.drafters", True),
        ("from .drafters import base", "draftproof.models", True),
        ("from . import base", "draftproof.models.drafters.dflash", False),
        ("from draftproof import __version__", "draftproof.cli.app", False),
        ("from draftproof.bench.spread import Spread", "draftproof.bench.figures", False),
        ("import torch, numpy.linalg", "draftproof.verify.greedy", False),
    ],
)
def test_the_check_lets_the_rest_pass(source: str, module: str, is_package: bool) -> None:
    assert not faults(source, module, is_package)


def loaded_by(statement: str, blocked: tuple[str, ...] = ()) -> set[str]:
    """Top-level modules in memory after a statement in a fresh interpreter in which `blocked` do not exist."""
    script = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {blocked!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        f"{statement}\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


HEAVY = {"torch", "numpy", "numba", "transformers", "huggingface_hub", "httpx", "safetensors", "gguf"}


@pytest.mark.parametrize(
    "statement",
    [
        "import draftproof",
        "import draftproof.errors",
        "import draftproof.cli",
        "import draftproof.cli.app",
        "import draftproof.models.registry",
    ],
)
def test_what_must_start_fast_loads_nothing_heavy(statement: str) -> None:
    assert not loaded_by(statement) & HEAVY


def test_verify_needs_nothing_but_torch_and_numpy() -> None:
    others = (
        "numba",
        "transformers",
        "tokenizers",
        "safetensors",
        "huggingface_hub",
        "gguf",
        "sentencepiece",
    )
    call = (
        "import torch\n"
        "from draftproof.verify import compute_dflash_correct_drafts_and_bonus as verify\n"
        "accepted, bonus = verify(candidates=torch.tensor([[1, 2, 3]]), target_predict=torch.tensor([[2, 4, 5]]))\n"
        "assert (accepted.tolist(), bonus.tolist()) == ([1], [4])"
    )
    loaded = loaded_by(call, (*others, "httpx", "platformdirs", "typer", "rich", "google"))
    assert "torch" in loaded


def test_the_package_gives_its_public_names() -> None:
    import draftproof

    for name in draftproof.__all__:
        assert getattr(draftproof, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        draftproof.nothing  # noqa: B018
    assert set(draftproof.__all__) <= set(dir(draftproof))
