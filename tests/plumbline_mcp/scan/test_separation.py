"""What approvals are worth is said: in an example, without a reviewer, with one, with unsafe roots."""

from pathlib import Path

import pytest

from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.scan.separation import separation
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.cli.launching import plumbline
from tests.plumbline_mcp.handmade_verdicts import image_pass
from tests.plumbline_mcp.server.roles import make_site


def test_it_says_who_could_sign_and_what_that_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    workspace = Workspace.open(tmp_path / "home")
    assert separation(workspace).startswith("no reviewer is enrolled, so nothing is approved; an agent of")
    make_site(tmp_path)
    assert separation(workspace).startswith("2 reviewers enrolled; an agent of the user that owns")
    (tmp_path / "trust").chmod(0o777)
    assert separation(workspace).startswith("no approval counts: others can write")
    example = Workspace.open(tmp_path / "example", kind="example")
    assert "proves nothing" in separation(example)


def test_the_reports_head_says_it_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Workspace.open(home).add_verdict(image_pass(), {})
    ended = plumbline("report", "--output", "r", home=home, PLUMBLINE_TRUST=str(tmp_path / "trust"))
    assert ended.returncode == 0, ended.stderr
    for name in ("r/report.md", "r/report.html"):
        head, _, rest = (tmp_path / name).read_text().partition("Verdicts")
        assert head.count("approvals are advisory") == 1
        assert "approvals are advisory" not in rest
