"""Check image: which program is run and how; what it answers is bounded and read strictly."""

import time
from pathlib import Path

import pytest

from checks.errors import BadInput
from checks.records import probe as probing
from checks.verdict import Outcome
from tests.checks.test_image import Image


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo 'libpython is missing' >&2; exit 127", "libpython is missing"),
        ("exit 0", "no output"),
        ("kill -9 $$", "no output"),
    ],
)
def test_a_broken_interpreter_is_bad_input(image: Image, text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        image.check(python=script(image.folder / "python", text))


@pytest.mark.parametrize("program", ["rm", "tee", "dd", "sh", "bash", "cat", "touch", "mv", "xargs"])
def test_another_program_in_place_of_an_interpreter_can_do_nothing(
    image: Image, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = image.folder / "place/probe_environment.py"
    probe.parent.mkdir()
    probe.write_bytes(probing.PROBE.read_bytes())
    monkeypatch.setattr(probing, "PROBE", probe)
    monkeypatch.chdir(probe.parent)
    with pytest.raises(BadInput, match="does not answer as a Python"):
        image.check(python=Path("/bin") / program)
    assert [path.name for path in probe.parent.iterdir()] == ["probe_environment.py"]
    assert len(probe.read_bytes()) > 1000


def test_only_a_python_is_given_more_than_a_question_for_its_version(image: Image) -> None:
    heard = image.folder / "heard"
    listening = script(image.folder / "other", f'echo "$@" >> {heard}; cat >> {heard}; echo tool 3.11')
    with pytest.raises(BadInput, match=r"tool 3\.11"):
        image.check(python=listening)
    assert heard.read_text() == "--version\n"
    script(listening, f'echo "$@" >> {heard}; echo Python 3.8.1')
    with pytest.raises(BadInput, match=r"Python 3\.8\.1"):
        image.check(python=listening)
    heard.unlink()
    script(listening, f'echo "$@" >> {heard}; exec {image.python} "$@"')
    assert image.check(python=listening).outcome is Outcome.PASS
    assert heard.read_text() == "--version\n-I -\n-I -\n"


def test_no_interpreter_at_all_is_bad_input(image: Image) -> None:
    for path in (image.folder / "nothing", image.folder, image.folder / "pack/pack.toml"):
        with pytest.raises(BadInput, match="no interpreter that can be started"):
            image.check(python=path)


def test_a_probe_answers_in_time_and_within_bounds(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "PROBE_MAX_BYTES", 1000)
    assert "more than 1000 bytes" in image.check(python=script(image.folder / "a", "yes")).reason
    monkeypatch.setattr(probing, "PROBE_TIME_LIMIT_S", 0.5)
    started = time.monotonic()
    verdict = image.check(python=script(image.folder / "b", "sleep 600 & sleep 600"))
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert time.monotonic() - started < 10


def test_a_forged_answer_is_read_strictly(image: Image) -> None:
    answer = """echo 'plumbline-probe {"format": 1, "verdict": "pass"}'"""
    forged = script(image.folder / "python", f"echo Python 3.12.1; {answer}")
    assert image.check(python=forged).outcome is Outcome.NOT_EVALUATED


def test_noise_that_an_environment_prints_at_start_is_ignored(image: Image) -> None:
    noise = "import sys; print('welcome'); print('warned', file=sys.stderr)\n"
    image.add("noise", "1.0", files={"noise.pth": noise})
    assert image.check().outcome is Outcome.PASS


def test_an_environment_without_the_framework_is_not_evaluated(image: Image) -> None:
    image.remove("big_trainer")
    verdict = image.check()
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "has no big-trainer installed" in verdict.reason
    assert verdict.next_step


def test_the_probe_sees_the_environment_and_nothing_of_ours(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(image.folder / "pack")
    (image.folder / "pack/here.py").write_text("")
    for module in ("rows_writer", "here"):  # beside the probe, in the current folder
        record, _, _ = probing.probe(image.python, ("big-trainer",), module)
        assert record.module.origin is None


def test_a_judged_environment_is_not_touched(image: Image) -> None:
    before = sorted(str(path) for path in image.site.rglob("*"))
    image.check()
    assert sorted(str(path) for path in image.site.rglob("*")) == before


def test_a_checkout_that_is_none_is_said(image: Image, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither a commit"):
        image.check(commit="main branch")
    with pytest.raises(BadInput, match="there is no folder"):
        image.check(source=tmp_path / "nothing")
    (tmp_path / "plain").mkdir()
    verdict = image.check(source=tmp_path / "plain")
    assert verdict.outcome is Outcome.NOT_EVALUATED
