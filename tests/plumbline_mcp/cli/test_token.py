"""``plumbline token`` as a person uses it: the passphrase on a terminal, the token in a file of mode 0600."""

import json
import os
import pty
import re
import select
import stat
import time
from pathlib import Path

import pytest

from approvals.trust_folder import TRUST_VARIABLE
from tests.approvals.reviewers import PASSPHRASE
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, plumbline
from tests.plumbline_mcp.server.roles import Site, approve, make_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return make_site(tmp_path)


def on_terminal(site: Site, *arguments: str, passphrase: str) -> tuple[int, str]:
    """Run it on a terminal of its own and type the passphrase when it is asked for."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(site.home.parent)
        os.execve(  # noqa: S606 - the launcher itself, on the new terminal
            LAUNCHER,
            [str(LAUNCHER), *arguments],
            environment(site.home, PLUMBLINE_TRUST=str(site.trust), NO_COLOR="1"),
        )
    shown, typed, end = "", False, time.monotonic() + 40
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.5)[0]:
            try:
                data = os.read(terminal, 4096)
            except OSError:
                break
            if not data:
                break
            shown += data.decode(errors="replace")
        if "passphrase" in shown and not typed:
            os.write(terminal, f"{passphrase}\n".encode())
            typed = True
    os.close(terminal)  # whatever still waits for an answer is hung up on
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def run(site: Site, *arguments: str) -> tuple[int, str]:
    ended = plumbline(*arguments, home=site.home, PLUMBLINE_TRUST=str(site.trust))
    return ended.returncode, ended.stdout


def test_a_token_is_signed_on_the_terminal_and_written_for_its_owner_alone(site: Site) -> None:
    file = site.home.parent / "verifier.token"
    mint = ("token", "mint", "verifier", "--name", "second", "--as", "ada", "--to", str(file))
    code, shown = on_terminal(site, *mint, passphrase=PASSPHRASE)
    assert code == 0, shown
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text().strip()
    assert token not in shown
    assert not list(file.parent.glob("**/*.sig"))
    found = site.tokens.find(token)
    assert found is not None
    assert (found.role, found.signers) == ("verifier", ("ada",))
    code, listed = run(site, "token", "list")
    assert code == 0
    assert re.search(r"second +verifier +active", listed)
    assert token not in listed
    assert run(site, "token", "revoke", "second")[0] == 0
    assert site.tokens.find(token) is None


def test_a_wrong_passphrase_leaves_nothing_that_counts(site: Site) -> None:
    file = site.home.parent / "agent.token"
    mint = ("token", "mint", "agent", "--name", "a1", "--as", "ada", "--to", str(file))
    code, shown = on_terminal(site, *mint, passphrase="wrong")
    assert code == 3
    assert "the token was not signed" in shown
    assert not file.exists()
    assert [one.state for one in site.tokens.listed()] == ["revoked"]


def test_without_a_terminal_nobody_signs_and_later_is_said(site: Site) -> None:
    code, said = run(site, "token", "mint", "agent", "--name", "a1", "--as", "ada", "--json")
    assert code == 3
    assert "--later" in json.loads(said)["next_step"]


def test_a_token_that_is_signed_later_counts_from_then_on(site: Site) -> None:
    code, said = run(site, "token", "mint", "agent", "--name", "a1", "--later", "--json")
    assert code == 0
    minted = json.loads(said)
    assert (minted["state"], minted["role"]) == ("waiting", "agent")
    assert site.tokens.find(minted["token"]) is None
    approve(site.workspace.approvals, minted["ticket"], site.ada)
    assert site.tokens.find(minted["token"]) is not None


def test_a_file_that_is_there_is_never_written_over(site: Site) -> None:
    file = site.home.parent / "kept"
    file.write_text("kept")
    code, said = run(site, "token", "mint", "agent", "--name", "a1", "--later", "--to", str(file), "--json")
    assert code == 3
    assert "exists already" in json.loads(said)["error"]
    assert (file.read_text(), site.tokens.listed()) == ("kept", [])
