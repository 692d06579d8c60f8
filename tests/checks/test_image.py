"""Check image on environments made here: each departure is found at its place, and a clean one passes."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.check import evaluate
from checks.errors import BadInput
from checks.image import CHECK
from checks.verdict import Caught, Outcome, Verdict
from tests.wheels import make_venv, record_digest, site_of, unpack, write_wheel

PACK = """
format = 1
name = "trainer"
title = "A framework of two files"
[framework]
distributions = ["big-trainer"]
extras = ["kernels"]
module = "big_trainer"
"""
FILES = {
    "big_trainer/__init__.py": '__version__ = "2.1.0"\n',
    "big_trainer/loss.py": "def loss(values):\n    return sum(values) / len(values)\n",
}
REQUIRES = (
    "leaf>=1.5,<3",
    "Under_Score.name==4.0",
    'kernel-pack>=1; extra == "kernels"',
    'test-only>=1; extra == "test"',
    'only-on-windows>=1; sys_platform == "win32"',
)


class Image:
    """An environment with a framework, its dependencies and the pack that knows it."""

    def __init__(self, folder: Path, **framework: Any) -> None:
        self.folder = folder
        self.python = make_venv(folder / "venv")
        self.site = site_of(self.python)
        (folder / "pack").mkdir()
        (folder / "pack/pack.toml").write_text(PACK)
        self.add("leaf", "2.0", requires=["root>=1"])
        self.add("root", "1.0")
        self.add("under-score-name", "4.0")
        self.add("kernel-pack", "1.2")
        options = {"requires": REQUIRES, "files": FILES} | framework
        self.information = self.add("big-trainer", "2.1.0", **options)

    def add(self, name: str, version: str, **options: Any) -> Path:
        return unpack(write_wheel(self.folder, name, version, **options), self.python)

    def remove(self, name: str) -> None:
        for path in self.site.glob(f"{name}-*.dist-info/*"):
            path.unlink()

    def check(self, **inputs: Any) -> Verdict:
        asked = {"python": self.python, "framework": str(self.folder / "pack"), **inputs}
        return evaluate(CHECK, CHECK.inputs.model_validate(asked))


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def problems(verdict: Verdict) -> list[tuple[str, str, str]]:
    return [
        (part, problem.code, problem.place.package or problem.place.file or "")
        for part, problem in verdict.problems()
    ]


def test_a_clean_environment_passes_and_every_fault_is_caught(image: Image) -> None:
    verdict = image.check(commit="v2.1")
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, [])
    assert {(part.name, str(part.coverage)) for part in verdict.parts} == {
        ("requirements", "4 of 4 requirements"),
        ("commit", "1 of 1 framework"),
        ("files", "4 of 4 files"),
    }
    caught = {injection.fault: injection.result for injection in verdict.injected}
    assert caught.pop("another commit installed") is Caught.NOT_APPLICABLE
    assert set(caught.values()) == {Caught.CAUGHT}
    assert len(verdict.evidence[0].sha256) == 64
    assert verdict.target["version"] == "2.1.0"
    assert not verdict.reference_shares_code


def test_a_declared_package_that_is_missing_fails(image: Image) -> None:
    image.remove("kernel_pack")
    verdict = image.check()
    assert problems(verdict) == [("requirements", "requirement-missing", "kernel-pack")]
    assert "declared by big-trainer and not installed" in verdict.reason


def test_an_older_dependency_fails_with_both_versions(image: Image) -> None:
    image.remove("leaf")
    image.add("leaf", "1.4")
    verdict = image.check()
    assert problems(verdict) == [("requirements", "requirement-unsatisfied", "leaf")]
    problem = verdict.parts[0].problems[0]
    assert problem.found == "1.4"
    assert "leaf<3,>=1.5" in str(problem.expected)


def test_a_requirement_of_a_requirement_is_declared_too(image: Image) -> None:
    image.remove("root")
    verdict = image.check()
    assert problems(verdict) == [("requirements", "requirement-missing", "root")]
    measured = {found.name: found.value for found in verdict.parts[0].measurements}
    assert (measured["declared by the framework"], measured["declared by what it requires"]) == (3, 1)


def test_a_local_version_and_a_pre_release_satisfy_what_they_satisfy(image: Image) -> None:
    image.remove("leaf")
    image.add("leaf", "2.1rc1+cpu", requires=["root>=1"])
    assert image.check().outcome is Outcome.PASS


def test_markers_are_those_of_the_judged_environment(tmp_path: Path) -> None:
    own = f'needed>=1; python_version == "{sys.version_info.major}.{sys.version_info.minor}"'
    image = Image(tmp_path, requires=["leaf>=2", own, 'unneeded>=1; python_version < "3"'])
    assert problems(image.check()) == [("requirements", "requirement-missing", "needed")]


def test_extras_of_a_requirement_are_followed(tmp_path: Path) -> None:
    image = Image(tmp_path, requires=["fast[gpu]>=1"])
    image.add("fast", "1.0", requires=['driver>=3; extra == "gpu"', 'docs>=1; extra == "docs"'])
    assert problems(image.check()) == [("requirements", "requirement-missing", "driver")]


def test_another_python_than_the_framework_declares_fails(tmp_path: Path) -> None:
    image = Image(tmp_path, metadata=["Requires-Python: <3.4"])
    assert problems(image.check()) == [("requirements", "requirement-unsatisfied", "python")]


def test_a_requirement_that_cannot_be_read_is_inconclusive(tmp_path: Path) -> None:
    image = Image(tmp_path, requires=["leaf>=2", "leaf >>> 3"])
    verdict = image.check()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert problems(verdict)[0][:2] == ("requirements", "requirement-unreadable")


def test_the_first_of_two_distributions_on_the_path_is_the_one_that_counts(image: Image) -> None:
    overlay = image.folder / "overlay"
    overlay.mkdir()
    for name in ("leaf", "leaf-2.0.dist-info"):
        (image.site / name).rename(overlay / name)
    image.add("leaf", "1.0")
    image.add("paths", "1.0", files={"a.pth": f"import sys; sys.path.insert(0, {str(overlay)!r})\n"})
    verdict = image.check()
    assert verdict.outcome is Outcome.PASS
    assert "in more than one folder of the path, the first is judged: leaf" in verdict.parts[0].notes
    (image.site / "a.pth").write_text(f"{overlay}\n")
    assert problems(image.check()) == [("requirements", "requirement-unsatisfied", "leaf")]


def test_an_edited_file_fails_with_its_name(image: Image) -> None:
    path = image.site / "big_trainer/loss.py"
    path.write_text(path.read_text().replace("len(values)", "max(1, len(values))"))
    verdict = image.check()
    assert problems(verdict) == [("files", "file-edited", "big_trainer/loss.py")]
    assert verdict.parts[2].problems[0].found == record_digest(path.read_bytes())


def test_a_missing_and_an_added_file_fail(image: Image) -> None:
    (image.site / "big_trainer/loss.py").unlink()
    (image.site / "big_trainer/loss").mkdir()
    (image.site / "big_trainer/loss/__init__.py").write_text("")
    (image.site / "big_trainer/__pycache__").mkdir()
    (image.site / "big_trainer/__pycache__/loss.cpython-311.pyc").write_bytes(b"")
    (image.site / "big_trainer/notes.txt").write_text("no code")
    assert problems(image.check()) == [
        ("files", "file-missing", "big_trainer/loss.py"),
        ("files", "file-unexpected", "big_trainer/loss/__init__.py"),
    ]


def test_a_pipe_in_place_of_a_file_does_not_stop_the_probe(image: Image) -> None:
    (image.site / "big_trainer/loss.py").unlink()
    os.mkfifo(image.site / "big_trainer/loss.py")
    assert problems(image.check()) == [("files", "file-missing", "big_trainer/loss.py")]


def test_code_that_shadows_the_framework_fails(image: Image) -> None:
    shadow = image.folder / "shadow/big_trainer"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text('__version__ = "2.0.0"\n')
    image.add("paths", "1.0", files={"a.pth": f"import sys; sys.path.insert(0, {str(shadow.parent)!r})\n"})
    assert {(part, code) for part, code, _ in problems(image.check())} == {
        ("commit", "version-differs"),
        ("files", "module-shadowed"),
    }


def test_an_installation_without_a_record_is_inconclusive(image: Image) -> None:
    (image.information / "RECORD").unlink()
    verdict = image.check()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert problems(verdict) == [("files", "record-missing", "big-trainer")]


def test_another_version_than_the_one_under_test_fails(image: Image) -> None:
    assert problems(image.check(commit="2.2.0"))[0][:2] == ("commit", "version-differs")


# --- locks ------------------------------------------------------------------------------------------------

UV = '[[package]]\nname = "leaf"\nversion = "{}"\n[[package]]\nname = "unused"\nversion = "9"\n'
POETRY = '[[package]]\nname = "Leaf"\nversion = "{}"\n[metadata]\nlock-version = "2.0"\n'
PYLOCK = 'lock-version = "1.0"\n[[packages]]\nname = "leaf"\nversion = "{}"\n'
PINNED = "# a comment\nleaf=={} \\\n    --hash=sha256:00\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("uv.lock", UV), ("poetry.lock", POETRY), ("pylock.toml", PYLOCK), ("requirements.txt", PINNED)],
)
def test_a_lock_means_equality(image: Image, tmp_path: Path, name: str, text: str) -> None:
    lock = tmp_path / name
    lock.write_text(text.format("2.0"))
    assert image.check(lock=lock).outcome is Outcome.PASS
    lock.write_text(text.format("2.0.1"))
    verdict = image.check(lock=lock)
    assert problems(verdict) == [("requirements", "requirement-unsatisfied", "leaf")]
    assert verdict.parts[0].problems[0].expected == "==2.0.1"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("root>=1", None),
        ("root>=2", "requirement-unsatisfied"),
        ("absent", "requirement-missing"),
        ('root>=2; sys_platform == "win32"', None),
        ("root @ https://example.org/root-1.0.whl", "requirement-unsatisfied"),
    ],
)
def test_a_line_of_a_lock_that_pins_nothing_has_to_hold(
    image: Image, tmp_path: Path, line: str, code: str | None
) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"leaf==2.0\n{line}\n")
    verdict = image.check(lock=lock)
    assert [found for _, found, _ in problems(verdict)] == ([code] if code else [])
    assert verdict.outcome is (
        Outcome.INCONCLUSIVE if "@" in line else Outcome.FAIL if code else Outcome.PASS
    )


def test_what_a_lock_names_for_this_environment_is_installed(image: Image, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text('leaf==2.0\nabsent==1.0\nelsewhere==1.0; sys_platform == "win32"\n')
    assert problems(image.check(lock=lock)) == [("requirements", "requirement-missing", "absent")]


@pytest.mark.parametrize(
    ("name", "head", "entry"),
    [
        ("uv.lock", "", '[[package]]\nname = "leaf"\nversion = "{}"\nresolution-markers = ["{}"]\n'),
        (
            "pylock.toml",
            'lock-version = "1.0"\n',
            '[[packages]]\nname = "leaf"\nversion = "{}"\nmarker = "{}"\n',
        ),
    ],
)
def test_what_a_lock_names_for_another_platform_does_not_count(
    image: Image, tmp_path: Path, name: str, head: str, entry: str
) -> None:
    here, elsewhere = f"sys_platform == '{sys.platform}'", "sys_platform == 'win32'"
    lock = tmp_path / name
    lock.write_text(head + entry.format("2.0", here) + entry.format("1.0", elsewhere))
    assert image.check(lock=lock).outcome is Outcome.PASS
    lock.write_text(head + entry.format("1.0", here) + entry.format("2.0", elsewhere))
    assert problems(image.check(lock=lock)) == [("requirements", "requirement-unsatisfied", "leaf")]


@pytest.mark.parametrize("text", ["", "leaf>=2\n", "-r ../../etc/passwd\n"])
def test_a_lock_that_locks_nothing_is_bad_input(image: Image, tmp_path: Path, text: str) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text(text)
    with pytest.raises(BadInput, match=r"locks no version|leads out|cannot read"):
        image.check(lock=lock)
