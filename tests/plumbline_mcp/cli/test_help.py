"""Every verb explains itself, with an example that works, quickly."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import checks
from plumbline_mcp.cli.program import app
from tests.plumbline_mcp.cli.launching import plumbline


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name in getattr(command, "commands", {}) or (
        command.list_commands(None) if hasattr(command, "list_commands") else ()
    ):
        yield from walk(command.get_command(None, name), (*path, name))


VERBS: dict[tuple[str, ...], Any] = dict(walk(get_command(app)))
NEEDS_NOTHING = [
    "list checks",
    "doctor",
    "version show",
    "version show --json",
    "faults list",
]


def example(path: tuple[str, ...]) -> str:
    found = re.search(r"Example: plumbline (.+)", VERBS[path].help)
    assert found, f"{path}: no example"
    return found[1].strip()


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_has_an_example_whose_options_exist(path: tuple[str, ...]) -> None:
    words = shlex.split(example(path))
    command = get_command(app)
    while words and hasattr(command, "get_command") and command.get_command(None, words[0]):
        command = command.get_command(None, words.pop(0))
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("words", NEEDS_NOTHING)
def test_examples_that_need_nothing_run(words: str, tmp_path: Path) -> None:
    assert words == "version show" or words in {example(path) for path in VERBS}
    ended = plumbline(*words.split(), home=tmp_path / "home")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


@pytest.mark.parametrize("path", [path for path in VERBS if len(path) <= 1], ids=" ".join)
def test_help_fits_eighty_columns(path: tuple[str, ...], tmp_path: Path) -> None:
    ended = plumbline(*path, "--help", home=tmp_path / "home", COLUMNS="80")
    assert ended.returncode == 0
    assert max(map(len, ended.stdout.splitlines())) <= 80
    assert not list(tmp_path.iterdir()), "help must not make a workspace"


@pytest.mark.parametrize("path", [path for path in VERBS if path and path != ("serve",)], ids=" ".join)
def test_every_verb_offers_json(path: tuple[str, ...]) -> None:
    command = VERBS[path]
    if not hasattr(command, "list_commands"):
        assert "--json" in {option for parameter in command.params for option in parameter.opts}


def test_the_help_of_check_asks_the_question_of_each(tmp_path: Path) -> None:
    shown = " ".join(plumbline("check", "--help", home=tmp_path / "home").stdout.split())
    for check in checks.discover().values():
        assert " ".join(check.question.split()) in shown


def test_the_program_starts_without_what_only_a_verb_needs() -> None:
    heavy = ("pydantic", "rich", "matplotlib", "jinja2", "mcp", "numpy", "torch", "transformers", "anyio")
    code = f"import sys, plumbline_mcp.cli; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_bare_call_shows_the_verbs_in_the_order_of_use(tmp_path: Path) -> None:
    ended = plumbline(home=tmp_path / "home")
    assert ended.returncode == 3
    places = [ended.stdout.index(f"\n  {verb} ") for verb in ("check", "list", "report", "onboard", "doctor")]
    assert places == sorted(places)


def test_version_names_release_and_digest(tmp_path: Path) -> None:
    shown = plumbline("--version", home=tmp_path / "home").stdout
    assert re.fullmatch(r"plumbline \d+\.\d+\.\d+-[0-9a-f]{12}(\+dev)?\n", shown)
