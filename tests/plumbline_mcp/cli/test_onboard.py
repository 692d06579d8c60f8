"""`plumbline onboard` on a real terminal and without one: who is asked, and what is refused."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from approvals.statement import Action
from approvals.ticket import TicketState
from approvals.trust_folder import TRUST_VARIABLE
from plumbline_mcp.workspace import RunState, Workspace
from tests.approvals.reviewers import PASSPHRASE, make_reviewer, trusting
from tests.plumbline_mcp.cli.launching import CTRL_C, LAUNCHER, environment, on_terminal, plumbline
from tests.plumbline_mcp.scan.planned_target import planned_target

QUESTION = r"approve it with the example's throwaway key\? \[y/N\]: "
OWN_PROMPT = r"leave it to plumbline queue: |why \(kept with the signature\): |Enter passphrase: "
ENTRY = """
id = "image-alone"
title = "The environment alone"
mechanism = "none"
pattern = 1
silent = true
source = "built by plumbline"
clean = true
checks = ["image"]
rows = 4

[release]
family = "llama"
quantized = false
"""


def test_without_a_terminal_it_names_the_option(tmp_path: Path) -> None:
    done = plumbline("onboard", home=tmp_path / "home")
    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert "there is no terminal to ask on" in said
    assert "plumbline onboard --sign example, or make onboard SIGN=example" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("onboard", "target.toml", "--sign", "example"), "plumbline key enrol NAME"),
        (("onboard", "--sign", "ada"), "only the example's throwaway key signs here: --sign example"),
    ],
)
def test_the_example_key_signs_for_the_example_alone(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = plumbline(*arguments, home=tmp_path / "home")
    assert done.returncode == 3
    words = "".join(character if character.isprintable() else " " for character in done.stderr)
    assert said in " ".join(words.replace("│", " ").split())
    assert not (tmp_path / "home").exists()


def test_a_real_workspace_is_not_signed_in_with_it(tmp_path: Path) -> None:
    Workspace.open(tmp_path / "home")
    done = plumbline("onboard", "--sign", "example", home=tmp_path / "home")
    assert done.returncode == 3
    assert "is a real one" in done.stderr
    assert not (tmp_path / "home" / "example-trust").exists()


def corpus(tmp_path: Path) -> Path:
    """One entry that plants nothing and takes one step."""
    entries = tmp_path / "corpus" / "entries"
    entries.mkdir(parents=True)
    (entries / "image-alone.toml").write_text(ENTRY)
    return entries.parent


def answered(tmp_path: Path, answer: str) -> tuple[int, str]:
    """What comes of the scan of one step, and everything that was shown, with that answer to the question."""
    arguments = ("onboard", "--plant", "image-alone", "--corpus", str(corpus(tmp_path)))
    variables = environment(tmp_path / "home", TERM="xterm-256color", COLUMNS="100")
    return on_terminal(arguments, (answer,), variables, QUESTION)


@pytest.mark.environment
def test_a_y_on_the_terminal_signs_what_was_shown(tmp_path: Path) -> None:
    code, shown = answered(tmp_path, "y")
    assert code == 0, shown[-2000:]
    assert "to be signed" in shown
    workspace = Workspace.open(tmp_path / "home", kind="example")
    (ticket,) = workspace.approvals.tickets()
    assert ticket.id in shown
    assert [each.signer for each in ticket.decisions] == ["example"]
    assert [run.job.procedure for run in workspace.runs_list()] == ["first_run"]
    assert [run.state for run in workspace.runs_list()] == [RunState.SEALED]


@pytest.mark.environment
@pytest.mark.parametrize(("answer", "code"), [("", 2), (CTRL_C, 130)])
def test_any_other_answer_starts_nothing(tmp_path: Path, answer: str, code: int) -> None:
    ended, shown = answered(tmp_path, answer)
    assert ended == code, shown[-2000:]
    workspace = Workspace.open(tmp_path / "home", kind="example")
    assert not workspace.runs_list()
    (ticket,) = workspace.approvals.tickets()
    assert ticket.state.value == ("rejected" if code == 2 else "pending")


# --- a target of one's own ------------------------------------------------------------------------------


@dataclass
class Desk:
    """A target whose jobs take seconds, a real workspace, and a reviewer whose key has a passphrase."""

    target: Path
    variables: dict[str, str]
    workspace: Workspace

    def onboarded(self, *arguments: str, answers: tuple[str, ...] = ()) -> tuple[int, str]:
        words = ("onboard", str(self.target), *arguments)
        return on_terminal(words, answers, self.variables, OWN_PROMPT)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    target = planned_target(tmp_path, home="example").target
    roots = trusting(tmp_path / "trust", "solo", make_reviewer("ada", tmp_path))
    monkeypatch.setenv(TRUST_VARIABLE, str(roots.folder))
    variables = environment(
        tmp_path / "home", TERM="xterm-256color", COLUMNS="100", PLUMBLINE_TRUST=str(roots.folder)
    )
    return Desk(target, variables, Workspace.open(tmp_path / "home"))


def test_without_a_reviewer_both_ways_are_named_and_nothing_starts(tmp_path: Path) -> None:
    target = planned_target(tmp_path, home="example").target
    done = plumbline("onboard", str(target), home=tmp_path / "home", PLUMBLINE_TRUST=str(tmp_path / "trust"))
    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert "none is enrolled" in said
    assert "plumbline key enrol NAME" in said
    assert "--unsigned" in said
    assert not Workspace.open(tmp_path / "home").runs_list()


def test_the_jobs_of_a_target_are_signed_with_the_reviewers_own_key(desk: Desk) -> None:
    code, shown = desk.onboarded(answers=("y", "wrong", "y", PASSPHRASE, "y", PASSPHRASE))
    assert "not signed: " in shown, shown[-3000:]
    task, plan = sorted(desk.workspace.approvals.tickets(), key=lambda ticket: ticket.created)
    assert [task.request.action, plan.request.action] == [Action.TASK, Action.PLAN]
    assert [ticket.decisions[0].signer for ticket in (task, plan)] == ["ada", "ada"], code
    jobs = {run.job.procedure: run.job.approval for run in desk.workspace.runs_list()}
    assert jobs == {"dry_run": task.id, "export": task.id, "train_step": plan.id}
    assert "outcome: " in shown
    assert PASSPHRASE not in shown


def test_a_no_is_signed_too_with_its_reason_and_ends_the_scan(desk: Desk) -> None:
    code, shown = desk.onboarded(answers=("n", "not on this node", PASSPHRASE))
    assert code == 2, shown[-2000:]
    (ticket,) = desk.workspace.approvals.tickets()
    assert (ticket.state, ticket.decisions[0].reason) == (TicketState.REJECTED, "not on this node")
    assert "is rejected: not on this node" in " ".join(shown.split())
    assert not desk.workspace.runs_list()


def test_what_is_left_to_the_queue_goes_on_once_it_is_signed_there(desk: Desk, tmp_path: Path) -> None:
    """On a machine without a terminal; the reviewer sits at another one."""
    done = subprocess.Popen(
        [str(LAUNCHER), "onboard", str(desk.target), "--json"],
        env=desk.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signed: set[str] = set()
    deadline = time.monotonic() + 120
    while done.poll() is None and time.monotonic() < deadline:
        for ticket in desk.workspace.approvals.tickets(TicketState.PENDING):
            sign = ("queue", "approve", ticket.id, "--key", str(tmp_path / "ada-opened"), "--reason", "read")
            on_terminal(sign, (), desk.variables)
            signed.add(ticket.id)
        time.sleep(0.2)
    said, error = done.communicate(timeout=10)
    assert [one for one in signed if f"waits for a reviewer (plumbline queue): {one}" in error] == list(
        signed
    )
    assert len(signed) == 2
    assert {run.job.approval for run in desk.workspace.runs_list()} == signed
    assert {one["check"] for one in json.loads(said)["verdicts"]} >= {"image", "export", "optimizer_step"}


def test_unsigned_jobs_say_so(desk: Desk) -> None:
    code, shown = desk.onboarded("--unsigned")
    assert {run.job.approval for run in desk.workspace.runs_list()} == {"none"}, (code, shown[-2000:])
    assert not desk.workspace.approvals.tickets()


def test_without_a_policy_the_next_step_is_named_at_once(desk: Desk) -> None:
    (Path(desk.variables["PLUMBLINE_TRUST"]) / "policy.toml").unlink()
    code, shown = desk.onboarded()
    assert code == 3, shown
    assert "plumbline policy use solo, or team" in " ".join(shown.split())
    assert not desk.workspace.approvals.tickets()
