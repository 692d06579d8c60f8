"""Enrolling, asking, signing on a terminal and waiting, as a reviewer does it with the installed program."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from approvals.statement import Request
from approvals.trust import TrustRoots
from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.workspace import Workspace
from tests.approvals.reviewers import PASSPHRASE, Reviewer, make_reviewer, ssh_keygen, trusting
from tests.plumbline_mcp.cli.launching import LAUNCHER, environment, on_terminal, plumbline
from tests.plumbline_mcp.cli.test_terminal import commands_in
from tests.plumbline_mcp.handmade_verdicts import HOSTILE


@pytest.fixture(scope="module")
def ada(tmp_path_factory: pytest.TempPathFactory) -> Reviewer:
    return make_reviewer("ada", tmp_path_factory.mktemp("keys"))


class Desk:
    """A real workspace and a reviewer's trust roots."""

    def __init__(self, folder: Path, ada: Reviewer) -> None:
        self.home, self.ada = folder / "home", ada
        self.trust = trusting(folder / "trust", "solo", ada)
        os.environ[TRUST_VARIABLE] = str(self.trust.folder)
        self.workspace = Workspace.open(self.home)

    def ask(self, **changed: Any) -> str:
        values: dict[str, Any] = {"action": "plan", "title": "a plan", "content": {"steps": 3}}
        request = Request.model_validate({"requester": "agent"} | values | changed)
        return self.workspace.approvals.request(request).id

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return plumbline(*arguments, home=self.home, PLUMBLINE_TRUST=str(self.trust.folder))

    def typed(self, *arguments: str, answers: tuple[str, ...] = ()) -> tuple[int, str]:
        return on_terminal(
            arguments, answers, environment(self.home, PLUMBLINE_TRUST=str(self.trust.folder), TERM="xterm")
        )


@pytest.fixture
def desk(tmp_path: Path, ada: Reviewer, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv(TRUST_VARIABLE, "")
    return Desk(tmp_path, ada)


def test_a_reviewer_signs_on_the_terminal_with_the_passphrase(desk: Desk) -> None:
    ticket = desk.ask()
    code, shown = desk.typed("queue", "approve", ticket, "--reason", "fine", answers=(PASSPHRASE,))
    assert code == 0, shown
    request = desk.workspace.approvals.ticket(ticket).request
    content, _, asked = shown.partition('│   "steps": 3')
    assert request.sha256 in "".join(content.split())
    before = "".join(asked[: asked.index("assphrase")].split())  # once more below the content, folded
    for text in ("approve", ticket, "plan:aplan", request.sha256):
        assert text in before
    assert PASSPHRASE not in shown
    assert desk.workspace.approvals.verify(ticket).decisions[0].signer == "ada"


@pytest.mark.parametrize("answers", [("wrong",), ("",)])
def test_without_the_passphrase_nothing_is_signed(desk: Desk, answers: tuple[str, ...]) -> None:
    ticket = desk.ask()
    code, shown = desk.typed("queue", "approve", ticket, answers=answers)
    assert code == 3
    assert "nothing was signed with" in " ".join(shown.split())
    assert desk.workspace.approvals.ticket(ticket).state == "pending"


def test_without_a_terminal_nothing_is_signed(desk: Desk) -> None:
    done = subprocess.run(
        [str(LAUNCHER), "queue", "approve", desk.ask(), "--json"],
        env=environment(desk.home, PLUMBLINE_TRUST=str(desk.trust.folder)),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 3
    assert "there is no terminal" in json.loads(done.stdout)["error"]


def test_a_rejection_says_what_would_be_accepted_and_wait_tells_it(desk: Desk) -> None:
    ticket = desk.ask()
    code, shown = desk.typed(
        "queue", "reject", ticket, "--reason", "use 8 nodes", "--as", "ada", answers=(PASSPHRASE,)
    )
    assert code == 0, shown
    waited = desk.run("queue", "wait", ticket, "--json")
    assert waited.returncode == 1
    assert json.loads(waited.stdout)["reason"] == "use 8 nodes"


def test_a_decision_that_was_signed_elsewhere_is_taken_in(desk: Desk, tmp_path: Path) -> None:
    ticket, file = desk.ask(), tmp_path / "statement.json"
    written = desk.run("queue", "approve", ticket, "--as", "ada", "--statement-to", str(file), "--json")
    assert written.returncode == 0, written.stdout
    command = json.loads(written.stdout)["sign"].split()
    assert command[:5] == ["ssh-keygen", "-Y", "sign", "-n", "plumbline-approval@v1"]
    ssh_keygen("-Y", "sign", "-n", "plumbline-approval@v1", "-f", str(desk.ada.opened), str(file))
    taken = desk.run("queue", "record", str(file), f"{file}.sig")
    assert taken.returncode == 0, taken.stderr
    assert "approved" in taken.stdout
    assert "content:" not in taken.stdout  # it was read where it was signed
    again = desk.run("queue", "record", str(file), f"{file}.sig", "--json")
    assert again.returncode == 3
    assert "is approved already" in json.loads(again.stdout)["error"]


@pytest.mark.parametrize("text", ["", "{}", "no json", "é", "x" * 70_000])
def test_a_file_that_is_no_statement_is_refused(desk: Desk, tmp_path: Path, text: str) -> None:
    file = tmp_path / "statement.json"
    file.write_text(text)
    ended = desk.run("queue", "record", str(file), str(file))
    assert ended.returncode == 3
    assert "no statement" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_that_cannot_be_used_is_a_sentence(desk: Desk) -> None:
    ticket = desk.ask()
    writer = desk.workspace.approvals.connection
    writer.execute("drop table uses")
    shown = desk.run("queue", "show", ticket)
    assert shown.returncode == 3
    assert "cannot be used: no such table: uses" in " ".join(shown.stderr.split())


def test_waiting_ends_at_its_time_with_pending(desk: Desk) -> None:
    ended = desk.run("queue", "wait", desk.ask(), "--timeout", "0.1", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["state"]) == (2, "pending")


def test_list_and_show_tell_what_is_signed(desk: Desk) -> None:
    ticket = desk.ask(node_millihours=1500, subjects={"model": "a1" * 32})
    listed = json.loads(desk.run("queue", "list", "--state", "pending", "--json").stdout)
    assert [(row["id"], row["request"]["node_millihours"]) for row in listed] == [(ticket, 1500)]
    assert listed[0]["content_sha256"] == desk.workspace.approvals.ticket(ticket).request.content_sha256
    assert ticket in desk.run("queue").stdout
    shown = desk.run("queue", "show", ticket).stdout
    for text in (ticket, "plan: a plan", "1.5", "T1", "a1" * 32, '│   "steps": 3'):
        assert text in shown
    assert "nothing is approved" in desk.run("queue", "list", "--state", "approved").stdout


def test_what_a_requester_wrote_is_shown_and_never_obeyed(desk: Desk) -> None:
    title = "".join(HOSTILE.values())[:150]
    ticket = desk.ask(
        title=title, content={title: list(HOSTILE.values())}, subjects={title: "a1" * 32}, evidence=[title]
    )
    for arguments in (("queue", "list"), ("queue", "show", ticket), ("queue", "show", ticket, "--json")):
        code, shown = desk.typed(*arguments)
        assert code == 0
        assert ticket in shown
        assert commands_in(shown) == []
    code, shown = desk.typed("queue", "approve", ticket, answers=("wrong",))
    assert commands_in(shown.replace("\r", "")) == []


def test_to_look_makes_no_workspace(tmp_path: Path) -> None:
    ended = plumbline("queue", home=tmp_path / "home")
    assert (ended.returncode, "there is no workspace" in ended.stderr) == (3, True)
    assert not (tmp_path / "home").exists()


# --- the example ------------------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path) -> tuple[Path, str]:
    workspace = Workspace.open(tmp_path / "home", kind="example")
    request = Request(action="plan", title="the example", content=1, requester="agent")
    return workspace.home, workspace.approvals.request(request).id


def test_the_examples_key_signs_after_a_y(example: tuple[Path, str]) -> None:
    home, ticket = example
    arguments = ("queue", "approve", ticket)
    for answer, code, state in (("", 3, "pending"), ("n", 3, "pending"), ("y", 0, "approved")):
        ended, shown = on_terminal(arguments, (answer,), environment(home, TERM="xterm"))
        assert ended == code, shown
        assert Workspace.open(home).approvals.ticket(ticket).state == state


def test_without_a_terminal_the_examples_key_has_to_be_named(example: tuple[Path, str]) -> None:
    home, ticket = example
    refused = plumbline("queue", "approve", ticket, home=home)
    assert refused.returncode == 3
    assert "--as example" in refused.stderr
    signed = plumbline("queue", "approve", ticket, "--as", "example", "--json", home=home)
    assert json.loads(signed.stdout)["decisions"][0]["tier"] == "T0"


# --- keys and policies ------------------------------------------------------------------------------------


def trusted(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return plumbline(*arguments, home=folder / "home", PLUMBLINE_TRUST=str(folder / "trust"))


def test_keys_are_enrolled_listed_and_revoked(tmp_path: Path, ada: Reviewer) -> None:
    assert "no key is enrolled yet" in trusted(tmp_path, "key", "list").stdout
    enrolled = trusted(tmp_path, "key", "enrol", "ada", "--key", str(ada.public))
    assert enrolled.returncode == 0, enrolled.stderr
    assert "plumbline policy use solo" in enrolled.stdout
    (listed,) = json.loads(trusted(tmp_path, "key", "list", "--json").stdout)
    assert (listed["principal"], listed["revoked"]) == ("ada", False)
    assert listed["fingerprint"] in ssh_keygen("-l", "-f", str(ada.public))
    assert trusted(tmp_path, "key", "revoke", "ada").returncode == 0
    assert "revoked" in trusted(tmp_path, "key", "list").stdout
    assert not (tmp_path / "home").exists()


def test_a_key_without_a_passphrase_is_refused_in_a_sentence(tmp_path: Path) -> None:
    ssh_keygen("-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "bare"))
    refused = trusted(tmp_path, "key", "enrol", "ada", "--key", str(tmp_path / "bare.pub"))
    assert refused.returncode == 3
    assert "opens with an empty passphrase" in refused.stderr
    assert "next: set one: ssh-keygen -p -f" in refused.stderr


def test_a_key_is_made_on_the_terminal(tmp_path: Path) -> None:
    variables = environment(tmp_path / "home", PLUMBLINE_TRUST=str(tmp_path / "trust"), TERM="xterm")
    for phrase, code in (("", 3), (PASSPHRASE, 0)):
        ended, shown = on_terminal(("key", "enrol", "ada"), (phrase, phrase), variables)
        assert ended == code, shown
    trust = TrustRoots(tmp_path / "trust")
    assert trust.local_signer() == "ada"
    assert oct(trust.key_of("ada").stat().st_mode)[-3:] == "600"


def reviewers_of_doctor(folder: Path) -> dict[str, str]:
    said = json.loads(trusted(folder, "doctor", "--json").stdout)
    (found,) = [finding for finding in said["findings"] if finding["name"] == "reviewers"]
    return dict(found)


def test_the_doctor_looks_at_the_trust_roots(tmp_path: Path, ada: Reviewer) -> None:
    assert reviewers_of_doctor(tmp_path)["state"] == "unavailable"
    trusting(tmp_path / "trust", "team", ada)
    found = reviewers_of_doctor(tmp_path)
    assert (found["state"], found["found"].startswith("ada, policy team, ")) == ("ok", True)
    (tmp_path / "trust" / "allowed_signers").chmod(0o666)
    found = reviewers_of_doctor(tmp_path)
    assert (found["state"], "others can write" in found["found"]) == ("bad", True)


def test_a_policy_is_chosen_and_shown(tmp_path: Path) -> None:
    assert "plumbline key enrol" in trusted(tmp_path, "policy", "show").stderr
    used = json.loads(trusted(tmp_path, "policy", "use", "team", "--json").stdout)
    shown = json.loads(trusted(tmp_path, "policy", "show", "--json").stdout)
    assert (shown["name"], shown) == ("team", used)
    assert "no" in trusted(tmp_path, "policy", "show").stdout
    assert json.loads(trusted(tmp_path, "policy", "show", "solo", "--json").stdout)["name"] == "solo"
