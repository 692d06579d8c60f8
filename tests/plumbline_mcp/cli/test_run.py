"""plumbline run: what it says of a job that failed, and where its settings and inputs are named."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from checks.records.runs import Exit, Job, RunFolder
from plumbline_mcp.cli.following import next_command, pack_of
from plumbline_mcp.cli.run_view import ending, log_of, print_ranks, run_ending
from plumbline_mcp.cli.screen import console
from plumbline_mcp.workspace import Workspace
from tests.checks.export_pairs import write_llama
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline
from tests.plumbline_mcp.engines.small_pack import write_pack


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A workspace whose one run could not load its model, and what `run` said."""
    folder = tmp_path_factory.mktemp("failed")
    (folder / "model").mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    options = ("--model", "model", "--workload", "train.jsonl", "--python", sys.executable, "--quiet")
    ended = plumbline("run", "rows", *options, home=folder / "home", cwd=folder, COLUMNS="300")
    assert ended.returncode == 2, ended.stderr
    return folder / "home", ended.stdout


def test_a_failed_job_leads_to_its_log_and_to_no_check(failed: tuple[Path, str]) -> None:
    home, said = failed
    assert "rank 0 ended with exit code 1" in said
    assert str(home / "runs/rows-0001/logs/rank-00000.err") in said
    following = next(line for line in said.splitlines() if line.startswith("next:"))
    assert "plumbline show rows-0001" in following
    assert "plumbline check" not in said


def test_show_and_list_say_how_a_run_ended(failed: tuple[Path, str]) -> None:
    home, said = failed
    shown = plumbline("show", "rows-0001", home=home, COLUMNS="300").stdout
    assert "rank 0 ended with exit code 1" in shown
    last = [line for line in said.splitlines() if "│" in line][-1]
    assert last in shown
    assert "ended with exit code 1" in plumbline("list", "runs", home=home, COLUMNS="80").stdout
    (row,) = json.loads(plumbline("list", "runs", "--json", home=home).stdout)
    assert row["ended"] == "ended with exit code 1"


@pytest.mark.parametrize(
    ("exit_", "said"),
    [
        (Exit(rank=0, code=0), "ended by itself"),
        (Exit(rank=0, code=3), "ended with exit code 3"),
        (Exit(rank=0, signal=9), "was ended by signal 9"),
        (Exit(rank=0, signal=15, timed_out=True), "was ended at its time limit"),
        (Exit(rank=0), "ended with exit code unknown"),
    ],
)
def test_each_ending_has_its_words(exit_: Exit, said: str) -> None:
    assert ending(exit_) == said


def test_a_run_whose_folder_is_gone_says_so(filled: Path) -> None:
    workspace = Workspace.open(filled)
    assert "its folder is gone" in run_ending(workspace, workspace.run("rows-0001"))
    workspace.close()
    assert "its folder is gone" in plumbline("show", "rows-0001", home=filled, COLUMNS="300").stdout


def test_a_log_is_shown_escaped_and_never_followed_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "secret").write_text("what another file holds")
    folder = RunFolder(tmp_path, Job(run_id="rows-0001", procedure="rows", framework="x"), {})
    monkeypatch.setattr(RunFolder, "exits", lambda _: [Exit(rank=0, code=1), Exit(rank=1, code=1)])
    (tmp_path / "logs/rank-00000.err").write_bytes(b"x" * 100_000 + b"\n\x1b[2Jlast words\n")
    (tmp_path / "logs/rank-00001.err").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "logs/rank-00001.out")
    print_ranks(console(), folder)
    shown = capsys.readouterr().out
    assert r"\x1b[2Jlast words" in shown
    assert "\x1b" not in shown
    assert "another file" not in shown
    assert log_of(folder, 1).name == "rank-00001.err"


def test_a_missing_input_is_named_as_its_option(tmp_path: Path) -> None:
    ended = plumbline("run", "rows", "--model", str(tmp_path), home=tmp_path / "home")
    assert ended.returncode == 3
    assert "needs --workload" in ended.stderr


@pytest.mark.parametrize(
    "procedure", ["rows", "export", "dry_run", "build", "load", "train_step", "first_run"]
)
def test_the_next_command_is_one_that_takes_the_run(procedure: str, tmp_path: Path) -> None:
    """It is typed as printed; it gets as far as the inputs, which are not there."""
    inputs = {"model": tmp_path / "a model", "workload": tmp_path / "it's.jsonl", "template": tmp_path / "t"}
    command = shlex.split(next_command(f"{procedure}-0001", procedure, "trl", inputs, sys.executable))
    assert (command[-2:] == ["--template", str(inputs["template"])]) == (procedure == "rows")
    assert command[0] == "plumbline"
    Workspace.open(tmp_path / "home").close()
    ended = plumbline(*command[1:], "--json", home=tmp_path / "home")
    said = json.loads(ended.stdout)["error"]
    assert ended.returncode in (2, 3)
    known = [*map(str, inputs.values()), f"{procedure}-0001"]
    assert any(name in said for name in known), said
    assert "option" not in said.lower()


@pytest.mark.parametrize("how", ["run", "wait"])
def test_the_next_line_of_a_packs_folder_works_when_it_is_pasted(how: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write_llama(tmp_path / "a model")
    copied = 'import shutil\nshutil.copytree(job["inputs"]["model"], output, dirs_exist_ok=True)'
    pack = write_pack(tmp_path / "the user's pack", copied)
    named = ("--framework", pack.name, "--model", "a model", "--python", sys.executable)
    waited = ("--detach",) if how == "wait" else ()
    said = plumbline("run", "export", *named, *waited, "--quiet", home=home, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    if how == "wait":
        said = plumbline("job", "wait", "export-0001", "--quiet", home=home, cwd=tmp_path)
    line = next(each for each in said.stdout.splitlines() if each.startswith("next:"))
    assert f"--framework {shlex.quote(str(pack))}" in line
    shell = environment(home)
    shell["PATH"] = f"{LAUNCHER.parent}:{shell['PATH']}"
    pasted = ["bash", "-c", line.removeprefix("next:") + " --json"]
    done = subprocess.run(pasted, env=shell, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["outcome"] == "pass"


def test_a_packs_folder_is_named_only_where_it_is_still_that_pack(tmp_path: Path) -> None:
    def named(folder: str, framework: str = "small") -> str:
        return pack_of(Job(run_id="r", procedure="rows", framework=framework, pack_folder=folder))

    pack = write_pack(tmp_path / "pack")
    assert named(str(pack)) == str(pack)
    assert named("", "trl") == "trl"
    assert named("", "small") == ""
    escape = write_pack(tmp_path / "\x1b[2J")
    for wrong in ("pack", str(tmp_path), str(tmp_path / "gone"), str(escape), "/" + "x" * 5000):
        assert named(wrong) == ""
    assert named(str(pack), "another") == ""


def test_list_packs_names_each_setting_with_its_choices_and_default() -> None:
    home = Path.cwd() / "unused"
    told = json.loads(plumbline("list", "packs", "--json", home=home).stdout)
    settings = {setting["name"]: setting for pack in told for setting in pack["settings"]}
    assert settings["collator"]["choices"] == ["seq2seq", "language-modeling"]
    shown = plumbline("list", "packs", home=home, COLUMNS="200").stdout
    assert 'seq2seq | language-modeling, default "seq2seq"' in shown
    assert all(name in shown for name in settings)
    assert "plumbline list packs" in " ".join(plumbline("run", "--help", home=home).stdout.split())
