"""``plumbline version`` and ``reevaluate`` tell which version judged, and what differs from this one."""

import json
from pathlib import Path

import pytest

from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.workspace import Workspace
from tests.plumbline_mcp.cli.launching import plumbline
from tests.plumbline_mcp.handmade_verdicts import image_pass
from tests.plumbline_mcp.server.roles import Site, make_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return make_site(tmp_path)


def run(site: Site, *arguments: str) -> tuple[int, str]:
    ended = plumbline(*arguments, home=site.home, PLUMBLINE_TRUST=str(site.trust))
    return ended.returncode, ended.stdout


def test_freezing_waits_for_a_signature_and_the_list_says_so(site: Site) -> None:
    code, said = run(site, "version", "freeze", "--json")
    asked = json.loads(said)
    assert (code, asked["frozen"]) == (2, False)
    code, again = run(site, "version", "freeze")
    assert code == 2
    assert f"plumbline queue approve {asked['ticket']}" in again
    code, listed = run(site, "version", "list", "--json")
    assert code == 0
    found = {one["name"]: one for one in json.loads(listed)}
    assert found[asked["version"]]["installed"]
    waiting = [one for one in found.values() if one["ticket"] == asked["ticket"]]
    assert [one["state"] for one in waiting] == ["pending"]


def test_the_same_version_differs_in_nothing_and_an_unknown_one_is_an_error(site: Site) -> None:
    code, said = run(site, "version", "diff", "installed")
    assert (code, "nothing differs" in said) == (0, True)
    code, said = run(site, "version", "diff", "0.0.1-abcdef", "--json")
    assert code == 3
    assert "plumbline version list" in json.loads(said)["next_step"]


def test_reevaluate_names_the_version_of_before_and_takes_one_alone(site: Site) -> None:
    verdict = image_pass().model_copy(update={"system_version": "0.0.1-abc", "evidence": ()})
    Workspace.open(site.home).add_verdict(verdict, {})
    code, said = run(site, "reevaluate", "--of", "0.0.1-abc")
    assert "0.0.1-abc -> " in said
    assert "not described here" in said
    code, said = run(site, "reevaluate", "--of", "0.0.2-def", "--json")
    assert (code, json.loads(said)) == (0, [])
