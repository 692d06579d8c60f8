"""Freezing a version needs a reviewer; the list, and the difference in files, pins and rules."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from approvals.errors import Refused
from approvals.trust import TrustRoots
from approvals.trust_folder import TRUST_VARIABLE
from checks import rules
from plumbline_mcp import version
from plumbline_mcp.errors import UsageError
from plumbline_mcp.scan import versions
from tests.plumbline_mcp.handmade_verdicts import image_pass
from tests.plumbline_mcp.server.roles import Site, approve, make_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return make_site(tmp_path)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small shipped tree instead of ours: freezing writes into it."""
    root = tmp_path / "tree"
    for folder in version.SHIPPED:
        (root / folder).mkdir(parents=True)
        (root / folder / "file.py").write_text(f"# {folder}\n")
    monkeypatch.setattr(version, "ROOT", root)
    monkeypatch.setattr(version, "FROZEN", root / "plumbline_mcp" / "frozen.json")
    version.system_version.cache_clear()
    yield root
    version.system_version.cache_clear()


def frozen(site: Site) -> str:
    ticket = versions.ask(site.workspace, "operator")
    approve(site.workspace.approvals, ticket.id, site.ada)
    versions.freeze(site.workspace, ticket.id)
    return versions.installed().name


def changed(tree: Path, text: str = "# another\n") -> None:
    (tree / "checks" / "file.py").write_text(text)
    version.system_version.cache_clear()


def test_nothing_is_frozen_without_a_signature(site: Site, tree: Path) -> None:
    ticket = versions.ask(site.workspace, "operator")
    with pytest.raises(Refused, match="pending is not approved"):
        versions.freeze(site.workspace, ticket.id)
    approve(site.workspace.approvals, ticket.id, site.ada, "reject")
    with pytest.raises(Refused, match="rejected"):
        versions.freeze(site.workspace, ticket.id)
    assert not version.FROZEN.exists()
    assert str(version.system_version()).endswith("+dev")


def test_a_signed_tree_is_frozen_once_and_says_who_signed(site: Site, tree: Path) -> None:
    name = frozen(site)
    assert str(version.system_version()) == name
    told = json.loads(version.FROZEN.read_text())
    approvals = version.frozen_approvals()
    assert versions.frozen_by(site.workspace, approvals, told["digest"]) == ("ada",)
    assert versions.frozen_by(site.workspace, approvals, "0" * 64) == ()
    forged = [{**one, "statement": one["statement"].replace("ada", "eve")} for one in approvals]
    assert versions.frozen_by(site.workspace, forged, told["digest"]) == ()
    TrustRoots().revoke("ada")
    assert versions.frozen_by(site.workspace, approvals, told["digest"]) == ()
    changed(tree)
    assert not version.system_version().frozen


def test_a_tree_that_changed_after_the_signature_is_not_frozen(site: Site, tree: Path) -> None:
    ticket = versions.ask(site.workspace, "operator")
    approve(site.workspace.approvals, ticket.id, site.ada)
    changed(tree)
    with pytest.raises(Refused, match=r"'system version' is not what .* approved"):
        versions.freeze(site.workspace, ticket.id)
    assert not version.FROZEN.exists()
    assert site.workspace.approvals.ticket(ticket.id).uses_left == 1


def test_under_the_team_policy_two_reviewers_freeze_a_version(site: Site, tree: Path) -> None:
    TrustRoots().use_policy("team")
    ticket = versions.ask(site.workspace, "operator")
    approve(site.workspace.approvals, ticket.id, site.ada)
    with pytest.raises(Refused, match="1 of 2 signatures"):
        versions.freeze(site.workspace, ticket.id)
    approve(site.workspace.approvals, ticket.id, site.grace)
    versions.freeze(site.workspace, ticket.id)
    digest = version.system_version().digest
    assert versions.frozen_by(site.workspace, version.frozen_approvals(), digest) == ("ada", "grace")


def test_a_folder_that_cannot_be_written_leaves_the_approval_unused(
    site: Site, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = versions.ask(site.workspace, "operator")
    approve(site.workspace.approvals, ticket.id, site.ada)
    monkeypatch.setattr(version, "FROZEN", tree / "gone" / "frozen.json")
    version.system_version.cache_clear()
    with pytest.raises(UsageError, match="cannot be written"):
        versions.freeze(site.workspace, ticket.id)
    assert site.workspace.approvals.ticket(ticket.id).uses_left == 1


def test_the_difference_names_files_pins_and_rules(
    site: Site, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = frozen(site)
    pins = version.system_version().pins
    (tree / "checks" / "new.py").write_text("x = 1\n")
    (tree / "approvals" / "file.py").unlink()
    monkeypatch.setattr(rules, "TRAINED_SHARE", 0.25)
    monkeypatch.setattr(version, "_pins", lambda: pins | {"transformers": "5.99.0"})
    changed(tree)
    found = versions.difference(
        versions.content_of(site.workspace, before), versions.content_of(site.workspace, "installed")
    )
    assert found.files == {
        "approvals/file.py": "removed",
        "checks/file.py": "changed",
        "checks/new.py": "added",
    }
    assert found.rules == {"TRAINED_SHARE": ("0.5", "0.25")}
    assert found.pins == {"transformers": (pins["transformers"], "5.99.0")}
    same = versions.content_of(site.workspace, before)
    assert versions.difference(same, versions.content_of(None, str(version.FROZEN))).same


def test_the_list_has_what_is_installed_frozen_and_judged_by(site: Site, tree: Path) -> None:
    name = frozen(site)
    workspace = site.workspace
    workspace.add_verdict(image_pass().model_copy(update={"system_version": name}), {})
    workspace.add_verdict(image_pass().model_copy(update={"system_version": "0.0.1-abc+dev"}), {})
    changed(tree)
    versions.ask(workspace, "operator")
    listed = {one.name: one for one in versions.known(workspace)}
    now = str(version.system_version())
    assert (listed[now].installed, listed[now].frozen) == (True, False)
    assert (listed[name].installed, listed[name].frozen, listed[name].signers) == (False, True, ("ada",))
    assert listed[now.removesuffix("+dev")].state == "pending"
    assert (listed[name].verdicts, listed["0.0.1-abc+dev"].verdicts) == (1, 1)


@pytest.mark.parametrize("name", ["0.0.1-abc", "", "ab", "../x"])
def test_a_version_that_nothing_describes_is_refused(site: Site, tree: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no version that is described here"):
        versions.content_of(site.workspace, name)


def test_a_digest_list_that_was_changed_by_hand_is_refused(site: Site, tree: Path) -> None:
    frozen(site)
    told = json.loads(version.FROZEN.read_text())
    told["files"]["checks/file.py"] = "0" * 64
    path = tree / "list.json"
    path.write_text(json.dumps(told))
    with pytest.raises(UsageError, match="no whole digest list"):
        versions.content_of(None, str(path))
