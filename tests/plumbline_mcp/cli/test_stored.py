"""list, show, report and doctor on a workspace with verdicts made by hand."""

import html
import json
import re
import resource
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from checks.records.runs import Job
from checks.verdict import Outcome, Verdict
from plumbline_mcp.cli import doctor
from plumbline_mcp.engines import images
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp import handmade_verdicts
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline


def test_list_shows_the_newest_verdict_first(filled: Path) -> None:
    ended = plumbline("list", "--json", home=filled)
    assert [row["id"] for row in json.loads(ended.stdout)] == ["image-0001", "export-0001", "data-0001"]
    shown = plumbline("list", home=filled).stdout
    assert shown.index("image-0001") < shown.index("export-0001") < shown.index("data-0001")
    assert "✗ fail" in shown
    assert "? inconclusive" in shown
    narrow = plumbline("list", home=filled, COLUMNS="80").stdout
    assert "of m" in narrow
    assert all(len(line) <= 80 for line in narrow.splitlines())


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--check", "data"], ["data-0001"]),
        (["--outcome", "inconclusive"], ["export-0001"]),
        (["--limit", "1"], ["image-0001"]),
        (["--after", "export-0001"], ["data-0001"]),
        (["--check", "data", "--outcome", "pass"], []),
    ],
)
def test_list_filters(arguments: list[str], ids: list[str], filled: Path) -> None:
    ended = plumbline("list", "verdicts", *arguments, "--json", home=filled)
    assert [row["id"] for row in json.loads(ended.stdout)] == ids


def test_list_runs(filled: Path) -> None:
    (row,) = json.loads(plumbline("list", "runs", "--json", home=filled).stdout)
    assert (row["id"], row["state"], row["manifest_sha256"]) == ("rows-0001", "sealed", "ab" * 32)
    assert "rows-0001" in plumbline("list", "runs", home=filled).stdout


@pytest.mark.parametrize("kind", ["checks", "packs"])
def test_list_what_this_version_knows(kind: str, tmp_path: Path) -> None:
    ended = plumbline("list", kind, "--json", home=tmp_path / "home")
    assert ended.returncode == 0
    assert isinstance(json.loads(ended.stdout), list)
    assert not (tmp_path / "home").exists()


def test_a_list_that_is_narrowed_to_nothing_does_not_say_that_there_is_nothing(filled: Path) -> None:
    shown = plumbline("list", "--check", "data", "--outcome", "pass", home=filled).stdout
    assert "no verdicts that fit" in shown
    assert "yet" not in shown


def test_list_on_a_fresh_machine_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    ended = plumbline("list", home=tmp_path / "home")
    assert ended.returncode == 0
    assert "no verdicts yet; next: plumbline" in ended.stdout
    assert not (tmp_path / "home").exists()


def test_show_prints_every_listed_problem_with_place_expected_and_found(filled: Path) -> None:
    shown = plumbline("show", "data-0001", home=filled, COLUMNS="200").stdout
    stored = json.loads(plumbline("show", "data-0001", "--json", home=filled).stdout)
    verdict = Verdict.model_validate(stored["verdict"])
    assert len(verdict.problems()) == 15
    for part, problem in verdict.problems():
        assert f"✗ fail {part}/{problem.code} × " in shown
        assert f"at {problem.place}" in shown
        assert f"found: {problem.found}" in shown
        assert f"expected: {problem.expected}" in shown
    assert "388 of 400 rows" in shown
    assert "· not applicable" in shown
    assert verdict.evidence[0].sha256[:12] in shown
    assert "15 of 17 problems" in shown


def test_show_says_what_was_judged_before_its_parts(filled: Path) -> None:
    shown = plumbline("show", "data-0001", home=filled).stdout
    assert shown.index("model: /m") < shown.index("ids/content")


def test_show_a_run(filled: Path) -> None:
    shown = plumbline("show", "rows-0001", home=filled).stdout
    assert "sealed" in shown
    assert "ab" * 32 in shown
    assert json.loads(plumbline("show", "rows-0001", "--json", home=filled).stdout)["run_id"] == "rows-0001"


def test_report_writes_both_pages_where_it_says(filled: Path, tmp_path: Path) -> None:
    ended = plumbline("report", "--output", str(tmp_path / "out"), "--json", home=filled)
    assert ended.returncode == 0, ended.stderr
    written = {name: Path(path) for name, path in json.loads(ended.stdout).items()}
    assert written == {"html": tmp_path / "out/report.html", "markdown": tmp_path / "out/report.md"}
    page = written["html"].read_text(encoding="utf-8")
    assert all(name in page for name in ("data-0001", "export-0001", "image-0001"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.md"]


def test_report_keeps_the_failure_of_one_input_beside_the_pass_of_another(tmp_path: Path) -> None:
    workspace, failed = Workspace.open(tmp_path / "home"), handmade_verdicts.data_fail()
    passed = failed.model_copy(update={"outcome": Outcome.PASS, "parts": ()})
    for verdict, rows in ((passed, "/old"), (failed, "/bad"), (passed, "/good"), (passed, "/old")):
        workspace.add_verdict(verdict, {"model": "/m", "rows": rows})
    ended = plumbline("report", "--output", str(tmp_path / "out"), home=workspace.home)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Something is wrong" in page
    assert all(name in page for name in ("data-0002", "data-0003", "data-0004"))
    assert "1 earlier verdict does not count: a newer one judged the same subject." in page
    assert page.count("data-0001") == 1  # below the newest on its subject
    assert "not in this report" not in page + ended.stdout
    plumbline("report", "data-0003", "--output", str(tmp_path / "out"), home=workspace.home)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "3 of this workspace's verdicts are not in this report (1 of them failed)" in html.unescape(page)
    plumbline("report", "--all", "--output", str(tmp_path / "out"), home=workspace.home)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "data-0001" in page
    assert "not in this report" not in page


def test_report_counts_the_rerun_of_a_mended_job_and_keeps_a_run_on_other_inputs(tmp_path: Path) -> None:
    workspace, failed = Workspace.open(tmp_path / "home"), handmade_verdicts.data_fail()
    passed = failed.model_copy(update={"outcome": Outcome.PASS, "parts": (), "reason": "all hold"})
    for number, (workload, verdict) in enumerate((("/w", failed), ("/w", passed), ("/other", passed)), 1):
        inputs = {"model": "/m", "workload": workload}
        workspace.add_run(Job(run_id=f"rows-{number:04d}", procedure="rows", framework="x", inputs=inputs))
        rows = str(workspace.runs / f"rows-{number:04d}")
        workspace.add_verdict(verdict, inputs | {"rows": rows})
    plumbline("report", "--output", str(tmp_path / "out"), home=workspace.home)
    page = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert page.startswith("# Plumbline report: ✓ pass")
    said = "1 earlier verdict does not count: a newer one judged the same subject. Failed were data-0001."
    assert said in page
    assert re.findall(r"^\| (data-\d+)", page, re.MULTILINE) == ["data-0002", "data-0003"]


def test_report_of_chosen_verdicts(filled: Path, tmp_path: Path) -> None:
    plumbline("report", "image-0001", "--output", str(tmp_path), home=filled)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "image-0001" in page
    assert "data-0001" not in page


def test_report_opens_the_browser_only_when_asked(filled: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    asked = ("report", "image-0001", "--output", str(tmp_path))
    plumbline(*asked, home=filled, BROWSER=str(browser))
    assert not (tmp_path / "opened").exists()
    plumbline(*asked, "--open", home=filled, BROWSER=str(browser))
    assert (tmp_path / "opened").read_text().strip() == (tmp_path / "report.html").as_uri()


def test_report_into_a_file_is_refused(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    ended = plumbline("report", "--output", str(tmp_path / "taken"), home=filled)
    assert ended.returncode == 3
    assert "--output" in ended.stderr
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_full_disk_keeps_the_report_that_was_there(filled: Path, tmp_path: Path) -> None:
    plumbline("report", "image-0001", "--output", str(tmp_path), home=filled)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limit = 40_000  # bytes a file may have: enough for the database's own files, not for this report
    ended = subprocess.run(
        [LAUNCHER, "report", "--output", str(tmp_path)],
        env=environment(filled),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == 3
    assert ended.stderr.startswith("plumbline: cannot write the report")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_and_a_verdict_of_one_id_are_both_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    workspace = Workspace.open(home)
    workspace.add_verdict(handmade_verdicts.data_fail(), {"model": "/m"})
    workspace.add_run(Job(run_id="data-0001", procedure="rows", framework="transformers"))
    workspace.close()
    shown = plumbline("show", "data-0001", home=home, COLUMNS="200").stdout
    assert "✗ fail  data" in shown
    assert "a run has this id too: plumbline show run:data-0001" in shown
    assert "of the run" in plumbline("show", "run:data-0001", home=home).stdout
    alone = plumbline("show", "verdict:data-0001", home=home, COLUMNS="200").stdout
    assert "✗ fail  data" in alone
    assert "has this id too" not in alone
    refused = plumbline("show", "run:data-0002", home=home)
    assert (refused.returncode, "there is no run 'data-0002'" in refused.stderr) == (3, True)


def test_doctor_says_of_a_runtime_that_starts_nothing_that_it_is_unavailable(
    filled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docker = images.Runtime(name="docker", answers=True, version="27.1")
    found = [docker, images.Runtime(name="podman", why="podman is not installed")]
    monkeypatch.setattr(images, "runtimes", lambda: found)
    assert doctor.doctor(json_output=True, home=filled) == 0, "nothing needs it until a target names it"
    states = {f["name"]: f["state"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert (states["docker"], states["podman"]) == ("ok", "unavailable")
    doctor.doctor(home=filled)
    assert "– unavailable" in capsys.readouterr().out


def test_doctor_finds_a_healthy_workspace_healthy(filled: Path) -> None:
    ended = plumbline("doctor", "--json", home=filled)
    told = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert told["ok"]
    names = {finding["name"]: finding for finding in told["findings"]}
    assert names["journal"]["found"] == "WAL"
    assert names["launcher"]["state"] == "ok"
    assert "head" in names["audit log"]["found"]


def test_doctor_notes_a_framework_in_the_same_environment(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "environment      ✓ ok" in plumbline("doctor", home=filled).stdout
    folder = tmp_path / "trainer-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: trainer\nVersion: 1.0\nRequires-Dist: torch>=2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.doctor(json_output=True, home=filled) == 0
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["environment"]["state"] == "warn"
    assert "shared with trainer," in findings["environment"]["found"]


def test_doctor_finds_a_forged_verdict(filled: Path, tmp_path: Path) -> None:
    home = shutil.copytree(filled, tmp_path / "home")
    database = sqlite3.connect(home / "plumbline.db")
    database.execute("drop trigger verdicts_no_update")
    database.execute("update verdicts set verdict = replace(verdict, '\"fail\"', '\"pass\"')")
    database.commit()
    database.close()
    ended = plumbline("doctor", home=home)
    assert ended.returncode == 2
    assert "data-0001" in ended.stdout
    assert "✗ bad" in ended.stdout


def test_doctor_finds_a_damaged_database(filled: Path, tmp_path: Path) -> None:
    home = shutil.copytree(filled, tmp_path / "home")
    raw = bytearray((home / "plumbline.db").read_bytes())
    raw[:64] = b"\0" * 64
    (home / "plumbline.db").write_bytes(raw)
    ended = plumbline("doctor", "--json", home=home)
    assert ended.returncode == 2
    assert not json.loads(ended.stdout)["ok"]


def test_reevaluate_says_that_records_are_gone(filled: Path, tmp_path: Path) -> None:
    home = shutil.copytree(filled, tmp_path / "home")
    ended = plumbline("reevaluate", "data-0001", "--json", home=home)
    assert ended.returncode == 2
    assert json.loads(ended.stdout)[0]["change"] == "evidence_missing"
