"""Check image: the commit that is installed, wheels beside their source, editable checkouts."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from checks.verdict import Caught, Outcome
from tests.checks.test_image import FILES, Image, problems


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", folder, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **names},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_checkout(folder: Path) -> str:
    """A git checkout of the framework in a src layout; returns its commit."""
    for name, text in FILES.items():
        path = folder / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "big-trainer"\nversion = "2.1.0"\n'
        'dependencies = ["leaf>=1.5", "extra-of-source>=1"]\n'
    )
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "release")
    return git(folder, "rev-parse", "HEAD")


def from_commit(image: Image, commit: str) -> None:
    origin = {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": commit}}
    (image.information / "direct_url.json").write_text(json.dumps(origin))


def test_the_commit_that_was_installed_is_compared(image: Image) -> None:
    from_commit(image, "ab12" * 10)
    verdict = image.check(commit="ab12ab12")
    assert verdict.outcome is Outcome.PASS
    assert {found.result for found in verdict.injected} == {Caught.CAUGHT}
    verdict = image.check(commit="cd34" * 10)
    assert problems(verdict) == [("commit", "commit-differs", "")]
    assert (verdict.parts[1].problems[0].expected, verdict.parts[1].problems[0].found) == (
        "cd34" * 10,
        "ab12" * 10,
    )


def test_a_wheel_names_no_commit_and_only_a_checkout_decides(image: Image, tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    commit = make_checkout(source)
    image.add("extra-of-source", "1.0")
    verdict = image.check(commit=commit)
    assert problems(verdict) == [("commit", "commit-unknown", "big-trainer")]
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert image.check(commit=commit, source=source).outcome is Outcome.PASS
    (image.site / "big_trainer/loss.py").write_text("def loss(values):\n    return 0\n")
    assert ("commit", "commit-differs", "") in problems(image.check(source=source))


def test_what_a_checkout_declares_is_required(image: Image, tmp_path: Path) -> None:
    make_checkout(tmp_path / "checkout")
    verdict = image.check(source=tmp_path / "checkout")
    assert problems(verdict) == [("requirements", "requirement-missing", "extra-of-source")]


def editable(image: Image, source: Path) -> None:
    for name in FILES:
        (image.site / name).unlink()
    record = image.information / "RECORD"
    record.write_text("\n".join(line for line in record.read_text().splitlines() if ".dist-info" in line))
    (image.site / "__editable__.big_trainer.pth").write_text(f"{source / 'src'}\n")
    origin = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (image.information / "direct_url.json").write_text(json.dumps(origin))
    image.add("extra-of-source", "1.0")


def test_an_editable_installation_is_compared_with_its_git_tree(image: Image, tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    commit = make_checkout(source)
    editable(image, source)
    verdict = image.check(commit=commit)
    assert (verdict.outcome, problems(verdict)) == (Outcome.PASS, [])
    assert verdict.target["commit"] == commit
    assert {found.result for found in verdict.injected} == {Caught.CAUGHT}
    (source / "src/big_trainer/loss.py").write_text("def loss(values):\n    return 0\n")
    (source / "src/big_trainer/more.py").write_text("")
    assert problems(image.check(commit=commit)) == [
        ("files", "file-edited", "src/big_trainer/loss.py"),
        ("files", "file-unexpected", "src/big_trainer/more.py"),
    ]
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "changed")
    assert [entry[:2] for entry in problems(image.check(commit=commit))] == [("commit", "commit-differs")]


def test_every_package_of_an_editable_checkout_is_compared(image: Image, tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    make_checkout(source)
    sister = source / "src/big_trainer_ops/__init__.py"
    sister.parent.mkdir()
    sister.write_text("x = 1\n")
    (source / "src/outputs").mkdir()
    (source / "src/outputs/plot.py").write_text("no package\n")
    git(source, "add", "src/big_trainer_ops")
    git(source, "commit", "-q", "-m", "ops")
    editable(image, source)
    assert (image.check().outcome, problems(image.check())) == (Outcome.PASS, [])
    sister.write_text("x = 2\n")
    assert problems(image.check()) == [("files", "file-edited", "src/big_trainer_ops/__init__.py")]
    git(source, "checkout", "-q", ".")
    (source / "src/added").mkdir()
    (source / "src/added/__init__.py").write_text("")
    assert problems(image.check()) == [("files", "file-unexpected", "src/added/__init__.py")]
    (image.information / "top_level.txt").write_text("big_trainer\nbig_trainer_ops\n")
    assert image.check().outcome is Outcome.PASS  # the framework says which packages are its own
    sister.unlink()
    assert problems(image.check()) == [("files", "file-missing", "src/big_trainer_ops/__init__.py")]


def test_a_wheel_is_compared_with_its_source_in_both_directions(tmp_path: Path) -> None:
    data = "big_trainer/kernel.json"
    image = Image(tmp_path, files=FILES | {data: '{"a": 1}\n', "big_trainer/built.so": "compiled"})
    image.add("extra-of-source", "1.0")
    source = tmp_path / "checkout"
    make_checkout(source)
    tests = source / "src/big_trainer/tests/__init__.py"
    tests.parent.mkdir()
    tests.write_text("")

    def differing(name: str, text: str) -> list[str | None]:
        (source / "src" / name).write_text(text)
        git(source, "add", ".")
        git(source, "commit", "-q", "-m", name)
        return [problem.found for part, problem in image.check(source=source).problems() if part == "commit"]

    assert differing(data, '{"a": 1}\n') == []  # a wheel may leave whole folders out
    assert differing(data, '{"a": 2}\n') == [f"{data} differs"]
    assert differing(data, '{"a": 1}\n') == []
    assert differing("big_trainer/more.py", "x = 1\n") == ["big_trainer/more.py differs"]


def test_an_editable_installation_outside_git_is_inconclusive(image: Image, tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    make_checkout(source)
    editable(image, source)
    (source / ".git").rename(tmp_path / "away")
    verdict = image.check()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert problems(verdict) == [("files", "record-missing", "big-trainer")]


def test_a_checkout_cannot_run_a_program_through_its_configuration(image: Image, tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    make_checkout(source)
    program = tmp_path / "evil"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "filter.x.clean", "core.sshCommand"):
        git(source, "config", name, str(program))
    (source / ".gitattributes").write_text("* filter=x\n")
    editable(image, source)
    assert image.check().outcome is Outcome.PASS
    git(source, "config", "core.repositoryFormatVersion", "1")
    git(source, "config", "extensions.partialClone", "origin")
    git(source, "config", "remote.origin.promisor", "true")
    git(source, "config", "remote.origin.url", f"ext::{program}")
    git(source, "config", "protocol.ext.allow", "always")
    tree = git(source, "rev-parse", "HEAD:src/big_trainer")
    (source / ".git/objects" / tree[:2] / tree[2:]).unlink()
    assert image.check().outcome is Outcome.INCONCLUSIVE
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("declared", "origin", "outcome"),
    [
        ("git+https://example.org/leaf", {"requested_revision": "main"}, Outcome.PASS),
        ("git+https://example.org/leaf@v2.0", {"requested_revision": "v2.0"}, Outcome.PASS),
        ("git+https://user:word@example.org/leaf@v2.0", {"requested_revision": "v2.0"}, Outcome.PASS),
        ("git+https://example.org/leaf@v2.0#subdirectory=a", {"requested_revision": "v2.0"}, Outcome.PASS),
        ("git+https://example.org/leaf@ab12ab1", {"requested_revision": "ab12ab1"}, Outcome.PASS),
        ("git+https://example.org/leaf@ab12ab1", {"requested_revision": "v2.0"}, Outcome.PASS),
        ("git+https://example.org/leaf@v2.1", {"requested_revision": "v2.0"}, Outcome.FAIL),
        ("git+https://example.org/leaf@cd34cd3", {"requested_revision": "v2.0"}, Outcome.FAIL),
        ("git+https://example.org/fork", {"requested_revision": "v2.0"}, Outcome.FAIL),
        ("git+https://example.com/leaf@v2.0", {"requested_revision": "v2.0"}, Outcome.FAIL),
    ],
)
def test_a_requirement_on_a_repository_is_met_as_installers_record_it(
    tmp_path: Path, declared: str, origin: dict[str, str], outcome: Outcome
) -> None:
    """PEP 610 keeps the address, the revision that was asked for and the commit in fields of their own."""
    image = Image(tmp_path, requires=(f"leaf @ {declared}",))
    recorded = {"vcs": "git", "commit_id": "ab12" * 10, **origin}
    document = {"url": "https://example.org/leaf", "vcs_info": recorded}
    (image.site / "leaf-2.0.dist-info/direct_url.json").write_text(json.dumps(document))
    verdict = image.check()
    assert verdict.outcome is outcome
    expected = [] if outcome is Outcome.PASS else [("requirements", "requirement-unsatisfied", "leaf")]
    assert problems(verdict) == expected


def test_an_address_that_is_none_is_met_by_nothing(tmp_path: Path) -> None:
    image = Image(tmp_path, requires=("leaf @ git+https://example.org/leaf",))
    document = {"url": "https://[", "vcs_info": {"vcs": "git", "commit_id": "ab12" * 10}}
    (image.site / "leaf-2.0.dist-info/direct_url.json").write_text(json.dumps(document))
    assert problems(image.check()) == [("requirements", "requirement-unsatisfied", "leaf")]
