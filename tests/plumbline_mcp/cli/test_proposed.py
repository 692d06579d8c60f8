"""``plumbline proposed`` from adding a file to its acceptance on a terminal."""

import json
from pathlib import Path

import pytest

from approvals.trust_folder import TRUST_VARIABLE
from tests.approvals.reviewers import PASSPHRASE
from tests.plumbline_mcp.cli.test_token import on_terminal, run
from tests.plumbline_mcp.scan.proposed import HONEST
from tests.plumbline_mcp.server.roles import Site, make_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return make_site(tmp_path)


def test_a_check_is_added_run_outside_the_version_and_accepted(site: Site) -> None:
    file, rows = site.home.parent / "lines.py", site.home.parent / "rows.txt"
    file.write_text(HONEST)
    rows.write_text("one\n\n")
    assert run(site, "proposed", "add", str(file))[0] == 0
    code, said = run(site, "proposed", "run", "lines", "--input", f"file={rows}")
    assert code == 1, said
    assert "no reviewer accepted it" in " ".join(said.split())
    code, said = run(site, "proposed", "accept", "lines", "--json")
    assert code == 2
    assert "plumbline queue show" not in said
    ticket = json.loads(said)["ticket"]
    code, shown = run(site, "queue", "show", ticket)
    assert "Counts the lines of a file" in shown
    code, shown = on_terminal(site, "proposed", "accept", "lines", "--as", "ada", passphrase=PASSPHRASE)
    assert code == 0, shown
    assert shown.index("Counts the lines of a file") < shown.index("accepted for the next version")
    assert ticket in shown
    code, said = run(site, "proposed", "list", "--json")
    (listed,) = json.loads(said)
    assert (listed["accepted_by"], listed["ticket"]) == (["ada"], ticket)


def test_what_is_no_input_or_no_check_is_a_clear_error(site: Site) -> None:
    for words, step in (
        (("run", "nothing"), "propose it first"),
        (("add", "/etc/hostname", "--name", "data"), "no check's name"),
    ):
        code, said = run(site, "proposed", *words, "--json")
        assert code == 3
        assert step in json.loads(said)["next_step"]
