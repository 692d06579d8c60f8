"""The verbs as a person types them: from a verdict to an archive that somebody else checks."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline_mcp.findings.recomputing import recomputed_checks
from tests.plumbline_mcp.cli.launching import plumbline
from tests.plumbline_mcp.findings import faulty_export
from tests.plumbline_mcp.findings.faulty_export import TENSOR, Faulty
from tests.plumbline_mcp.handmade_verdicts import HOSTILE

pytestmark = pytest.mark.skipif(
    "export" not in recomputed_checks(), reason="an export cannot be recomputed here"
)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """An example workspace, whose throwaway key signs without a terminal."""
    return faulty_export.make(tmp_path_factory.mktemp("typed"), "example")


def run(example: Faulty, *words: str) -> subprocess.CompletedProcess[str]:
    return plumbline(*words, home=example.home)


def told(example: Faulty, *words: str, code: int = 0) -> Any:
    done = run(example, *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def proposed(example: Faulty, *more: str, code: int = 0) -> Any:
    words = (
        "--title",
        "A projection is spoiled",
        "--pattern",
        "6",
        "--silent",
        "--cause",
        "the exporter",
        "--fix",
        "do not",
    )
    return told(
        example,
        "finding",
        "propose",
        example.verdict.id,
        *words,
        "--cheapest-check",
        "check export",
        *more,
        code=code,
    )


def test_a_finding_goes_from_a_verdict_to_an_archive_that_others_check(
    example: Faulty, tmp_path: Path
) -> None:
    finding = proposed(
        example,
        "--as",
        "worker",
        "--place",
        f"tensor={TENSOR}",
        "--value",
        "values: elements that differ=4096",
    )
    name = finding["finding"]["id"]
    assert finding["next_step"] == f"plumbline verify {name} --recompute"
    early = told(example, "finding", "confirm", name, code=3)
    assert "only a rebuilt finding is decided" in early["error"]
    verified = told(example, "verify", name, "--recompute")
    assert (verified["state"], verified["comparison"]["result"], verified["way"]) == (
        "rebuilt",
        "agree",
        "recompute",
    )
    asked = told(example, "finding", "confirm", name, "--as", "worker", code=2)
    ticket = asked["next_step"].split()[3]
    assert asked["next_step"] == f'plumbline queue approve {ticket} --reason "..."'
    told(example, "queue", "approve", ticket, "--reason", "seen", "--as", "example")
    assert told(example, "finding", "confirm", name)["finding"]["state"] == "confirmed"
    archive = tmp_path / "e.tar"
    written = told(example, "export-evidence", name, "--out", str(archive))
    assert written["size"] == archive.stat().st_size
    signers = str(example.home / "example-trust" / "allowed_signers")
    checked = told(example, "verify-evidence", str(archive), "--allowed-signers", signers, code=1)
    assert checked["holds"] is False
    checked = told(
        example, "verify-evidence", str(archive), "--allowed-signers", signers, "--example", code=2
    )
    assert (checked["holds"], checked["state"], checked["confirmed"]) == (True, "confirmed", False)
    page = run(example, "verify-evidence", str(archive), "--allowed-signers", signers, "--example")
    assert "the throwaway example key signed: it proves nothing to others" in " ".join(page.stdout.split())
    shown = run(example, "finding", "show", name)
    for word in (TENSOR, "confirmed", "agree", "seen", "recompute (recompute)"):
        assert word in " ".join(shown.stdout.split()).replace("\n", ""), shown.stdout
    listed = run(example, "finding", "list", "--state", "confirmed")
    assert name in listed.stdout


def test_a_wrong_finding_is_disputed_with_what_was_claimed_and_found(example: Faulty) -> None:
    name = proposed(example, "--place", "tensor=model.layers.0.self_attn.q_proj.weight")["finding"]["id"]
    done = run(example, "verify", name)
    assert done.returncode == 1
    assert "dispute" in done.stdout
    assert f"{name} is disputed" in done.stdout
    refused = told(example, "finding", "refuse", name, "--reason", "the other layer")
    assert refused["finding"]["state"] == "refused"


def test_a_program_may_rebuild_and_its_agreement_alone_is_not_enough(example: Faulty, tmp_path: Path) -> None:
    name = proposed(example)["finding"]["id"]
    program = tmp_path / "my verifier.sh"
    answer = json.dumps({"outcome": "fail", "place": {"tensor": TENSOR}})
    program.write_text(f"#!/bin/sh\ntest -f question.json && printf '%s' '{answer}'\n")
    program.chmod(0o755)
    verified = told(example, "verify", name, "--command", f"'{program}'", "--as", "second")
    assert (verified["comparison"]["result"], verified["state"], verified["principal"]) == (
        "agree",
        "proposed",
        "second",
    )


def test_a_program_is_looked_for_where_it_was_typed(example: Faulty, tmp_path: Path) -> None:
    name = proposed(example, "--title", "Typed from a folder")["finding"]["id"]
    program = tmp_path / "my-verifier"
    program.write_text("""#!/bin/sh\nprintf '{"outcome": "inconclusive"}'\n""")
    words = ("verify", name, "--command", "./my-verifier", "--as", "third", "--json")
    refused = plumbline(*words, home=example.home, cwd=tmp_path)
    assert refused.returncode == 3
    assert "no program './my-verifier'" in json.loads(refused.stdout)["error"]
    program.chmod(0o755)
    done = plumbline(*words, home=example.home, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert json.loads(done.stdout)["principal"] == "third"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "finding-0001", "--recompute", "--command", "x"), "are two ways"),
        (("verify", "finding-0001", "--token-file", "x"), "goes with --command"),
        (("verify", "finding-9999"), "there is no finding"),
        (("verify", "finding-0001", "--command", "  "), "--command is empty"),
        (("finding", "show", "finding-9999"), "there is no finding"),
        (("finding", "propose", "export-0002", "--title", "abc", "--pattern", "9"), "pattern"),
        (("finding", "list", "--state", "lost"), "state"),
        (("export-evidence", "finding-9999"), "there is no finding"),
        (("verify-evidence", "/none.tar", "--allowed-signers", "/none"), "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_next_step(
    example: Faulty, words: tuple[str, ...], said: str
) -> None:
    answer = told(example, *words, code=3)
    assert said in answer["error"]
    assert answer["next_step"]


def test_text_of_a_finding_never_reaches_the_terminal_as_itself(example: Faulty, tmp_path: Path) -> None:
    """Title, cause and reasons are an agent's words; answers are a verifier's."""
    evil = " ".join(HOSTILE.values())
    stored = faulty_export.found(example, title=evil[:190], cause=evil, fix=evil, cause_place=evil[:400])
    finding = stored.finding.id
    from plumbline_mcp.findings.states import State
    from plumbline_mcp.findings.store import Findings

    Findings(example.workspace).step(finding, State.DISPUTED, "verifier", reason=evil)
    archive = tmp_path / "evil.tar"
    signers = str(example.home / "example-trust" / "allowed_signers")
    for words in (
        ("finding", "show", finding),
        ("finding", "list"),
        ("export-evidence", finding, "--out", str(archive)),
        ("verify-evidence", str(archive), "--allowed-signers", signers),
    ):
        done = run(example, *words)
        assert done.returncode in (0, 2), done.stderr
        seen = done.stdout + done.stderr
        assert not [
            one for one in ("\x1b", "\x07", "\x9b", "\u202e", "\U000e0041", "\u200b", "\r") if one in seen
        ]
    assert "\\x1b" in run(example, "finding", "show", finding).stdout


def test_a_workspace_without_findings_lists_none_and_makes_nothing(tmp_path: Path) -> None:
    done = plumbline("finding", "list", home=tmp_path / "home")
    assert (done.returncode, done.stdout.strip()) == (0, "no finding yet")
    assert not (tmp_path / "home").exists()
