"""``plumbline init``: a checked target from flags, or from questions on a terminal."""

import hashlib
import json
import os
import pty
import re
import select
import sys
import tomllib
from pathlib import Path

import pytest

from checks.references.packs import built_in
from plumbline_mcp.cli.options import ExitCode
from plumbline_mcp.scan.target import load_target
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    return tmp_path


FLAGS = ("--framework", "transformers", "--model", "release", "--workload", "rows.jsonl")


def test_flags_become_a_target_that_loads(folder: Path) -> None:
    flags = (*FLAGS, "--python", sys.executable, "--set", "epochs=3", "--set", "shuffle=false", "--json")
    done = plumbline("init", *flags, home=folder / "home", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["target"] == str(folder / "target.toml")
    assert told["steps"][0] == "image"
    target = load_target(folder / "target.toml")
    assert target.file.recipe == {"epochs": 3, "shuffle": False}
    assert target.file.model == Path("release")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "nothing says which framework"),
        (FLAGS, "nothing says which environment"),
        ((*FLAGS, "--pack-environment", "--image", "x"), "name two environments"),
        ((*FLAGS, "--image", "trainer:latest"), "names no content"),
        ((*FLAGS, "--pack-environment", "--set", "epochs=0"), "setting epochs is 0; give at least 1"),
        ((*FLAGS, "--pack-environment", "--set", "epoch=1"), "did you mean epochs?"),
        ((*FLAGS, "--pack-environment", "--set", "epochs"), "'epochs' is not NAME=VALUE"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(
    folder: Path, flags: tuple[str, ...], says: str
) -> None:
    done = plumbline("init", *flags, home=folder / "home", cwd=folder)
    assert done.returncode == 3
    assert says in " ".join(done.stderr.replace("\n  next:", ";").split())
    assert not (folder / "target.toml").exists()


def test_a_target_that_is_there_stays(folder: Path) -> None:
    (folder / "target.toml").write_text("mine")
    done = plumbline("init", *FLAGS, "--pack-environment", home=folder / "home", cwd=folder)
    assert done.returncode == 3
    assert "is there already" in done.stderr
    assert (folder / "target.toml").read_text() == "mine"
    done = plumbline("init", *FLAGS, "--pack-environment", "--force", home=folder / "home", cwd=folder)
    assert done.returncode == 0, done.stderr
    load_target(folder / "target.toml")


def on_a_terminal(
    folder: Path, flags: tuple[str, ...], answers: tuple[str, ...], then: bytes = b""
) -> tuple[int, str]:
    """The exit code of init and what it said on a terminal; ``then`` is typed while it waits for an answer.

    It is typed again while nothing happens: a key that comes just before the read is one that Python's own
    line reading lets wait for the next.
    """
    child, descriptor = pty.fork()
    if child == 0:
        os.chdir(folder)
        variables = environment(folder / "home", TERM="dumb", COLUMNS="100")
        os.execve(LAUNCHER, [str(LAUNCHER), "init", *flags], variables)  # noqa: S606 - a pty needs a fork
    os.write(descriptor, "".join(f"{answer}\n" for answer in answers).encode())
    said = b""
    while True:
        while then and not select.select([descriptor], [], [], 1)[0]:
            if b":" in said:
                os.write(descriptor, then)
        try:
            if not (read := os.read(descriptor, 65536)):
                break
            said += read
        except OSError:
            break
    _, status = os.waitpid(child, 0)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(status), " ".join(said.decode().split())


def test_what_no_flag_says_is_asked_on_a_terminal(folder: Path) -> None:
    answers = ("relaese", "release", "no.jsonl", "rows.jsonl", "pyhton", "python", "none", sys.executable)
    code, said = on_a_terminal(folder, ("--framework", "transformers"), answers)
    assert code == 0
    assert load_target(folder / "target.toml").file.environment.python == Path(sys.executable)
    for mistake in ("relaese holds no config.json", "there is no file no.jsonl", "'pyhton' is none of"):
        assert mistake in said


@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_question_can_be_left(folder: Path, key: bytes) -> None:
    code, said = on_a_terminal(folder, ("--framework", "transformers"), (), then=key)
    assert code == ExitCode.INTERRUPTED
    assert "stopped; nothing half-written" in said
    assert "crashed" not in said
    assert not (folder / "target.toml").exists()


def test_an_image_is_checked_when_it_is_answered(folder: Path) -> None:
    (folder / "trainer.sif").write_bytes(b"an image")
    digest = hashlib.sha256(b"an image").hexdigest()
    answers = ("image", "trainer:latest", "none.sif", "trainer.sif", "12ab", digest)
    code, said = on_a_terminal(folder, FLAGS, answers)
    assert code == 0, said
    assert "names no content: a tag may be moved" in said
    assert "there is no image none.sif" in said
    assert "has sha256 '12ab'" in said
    image = load_target(folder / "target.toml").file.environment.image
    assert image is not None
    assert (image.name, image.sha256) == ("trainer.sif", digest)


@pytest.mark.parametrize("image", ["trainer:latest", "none.sif"])
def test_a_flag_is_checked_before_the_first_question(folder: Path, image: str) -> None:
    code, said = on_a_terminal(folder, ("--image", image), ())
    assert code == 3
    assert image in said
    assert "Framework (" not in said


def test_each_commented_setting_can_be_uncommented(folder: Path) -> None:
    for framework in built_in():
        flags = ("--framework", framework, *FLAGS[2:], "--pack-environment", "--force")
        done = plumbline("init", *flags, home=folder / "home", cwd=folder)
        assert done.returncode == 0, done.stderr
        text = (folder / "target.toml").read_text("utf-8")
        assert "…" not in text
        commented = [line for line in text.splitlines() if re.match("# [a-z_]+ = ", line)]
        assert any("max_length" in line for line in commented)
        known = tomllib.loads("\n".join(line[2:] for line in commented))
        assert set(known) == {line.split()[1] for line in commented}


def test_a_target_and_a_plant_do_not_go_together(folder: Path) -> None:
    done = plumbline("onboard", "target.toml", "--plant", "x", home=folder / "home", cwd=folder)
    assert done.returncode == 3
    assert "embedded release alone" in " ".join(done.stderr.split())


def test_onboard_names_the_mistake_in_a_target(folder: Path) -> None:
    (folder / "target.toml").write_text("format = 1\n")
    done = plumbline("onboard", "target.toml", home=folder / "home", cwd=folder)
    assert done.returncode == 3
    assert f"{folder / 'target.toml'}: framework: Field required" in done.stderr
