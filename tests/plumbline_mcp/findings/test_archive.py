"""An evidence archive is checked by somebody else, elsewhere, with their keys; no byte of it can change."""

import hashlib
import io
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from approvals.canonical import canonical
from approvals.signatures import sign
from approvals.trust import NAMESPACE
from plumbline_mcp.errors import UsageError
from plumbline_mcp.findings import tar
from plumbline_mcp.findings.archive import export_evidence
from plumbline_mcp.findings.evidence import verify_evidence
from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.findings.tar import EvidenceRefused
from tests.plumbline_mcp.cli.launching import LAUNCHER
from tests.plumbline_mcp.findings import faulty_export, reviewing
from tests.plumbline_mcp.findings.faulty_export import PROPOSER, Faulty

pytestmark = pytest.mark.usefixtures("no_recompute")


@pytest.fixture(scope="module")
def archive(faulty: Faulty, roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The evidence of a confirmed finding."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLUMBLINE_TRUST", str(roots))
        patch.setattr("plumbline_mcp.findings.verification.recomputed_checks", frozenset)
        stored = reviewing.confirmed(faulty.workspace, faulty_export.found(faulty))
        return export_evidence(faulty.workspace, stored.finding.id, tmp_path_factory.mktemp("out") / "e.tar")


@pytest.fixture(scope="module")
def signers(roots: Path) -> Path:
    return roots / "allowed_signers"


def contents(archive: Path) -> dict[str, bytes]:
    with archive.open("rb") as file:
        return {one.name: tar.content(file, one, 2**30) for one in tar.members(file)}


def rewritten(files: dict[str, bytes], path: Path) -> Path:
    """An archive of these files with an index that fits them, as a forger would make it."""
    index = json.loads(files["evidence.json"])
    index["files"] = {
        name: {"sha256": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
        for name, raw in files.items()
        if name != "evidence.json"
    }
    entries = [
        ("evidence.json", canonical(index).encode() + b"\n"),
        *sorted((n, r) for n, r in files.items() if n != "evidence.json"),
    ]
    with path.open("wb") as file:
        tar.write(file, entries)
    return path


# --- what holds -----------------------------------------------------------------------------------------


def test_the_archive_proves_who_found_rebuilt_and_signed_what(archive: Path, signers: Path) -> None:
    report = verify_evidence(archive, signers)
    assert (report.state, report.confirmed, report.example) == (State.CONFIRMED, True, False)
    assert [(one.signer, one.decision.value, one.reason) for one in report.signatures] == [
        (reviewing.REVIEWER, "approve", "seen in the raw file")
    ]
    assert report.verifications == ("second-agent (agent): agree",)
    assert report.records > 5
    assert report.finding.proposer == PROPOSER


def test_the_same_finding_is_packed_into_the_same_bytes(
    archive: Path, faulty: Faulty, tmp_path: Path
) -> None:
    finding = json.loads(contents(archive)["evidence.json"])["finding"]
    again = export_evidence(faulty.workspace, finding, tmp_path / "again.tar")
    assert again.read_bytes() == archive.read_bytes()


def test_a_third_party_checks_it_offline_in_an_empty_folder(
    archive: Path, signers: Path, tmp_path: Path
) -> None:
    """Only the program, the archive and their own file: no workspace, no trust roots, no network."""
    folder = tmp_path / "third party"
    folder.mkdir()
    shutil.copy(archive, folder / "e.tar")
    shutil.copy(signers, folder / "my_signers")
    home = tmp_path / "nobody"
    home.mkdir()
    command = [str(LAUNCHER), "verify-evidence", "e.tar", "--allowed-signers", "my_signers", "--json"]
    if (unshare := shutil.which("unshare")) and not subprocess.run(
        [unshare, "-rn", "true"], capture_output=True, check=False
    ).returncode:
        command = [unshare, "-rn", *command]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["state"] == "confirmed"
    assert sorted(path.name for path in folder.iterdir()) == ["e.tar", "my_signers"]
    assert list(home.iterdir()) == []


def test_a_finding_that_nobody_signed_is_whole_and_not_confirmed(
    faulty: Faulty, signers: Path, tmp_path: Path
) -> None:
    stored = faulty_export.found(faulty)
    report = verify_evidence(
        export_evidence(faulty.workspace, stored.finding.id, tmp_path / "p.tar"), signers
    )
    assert (report.state, report.confirmed, report.signatures) == (State.PROPOSED, False, ())
    Findings(faulty.workspace).step(stored.finding.id, State.DISPUTED, "verifier", reason="no")
    report = verify_evidence(
        export_evidence(faulty.workspace, stored.finding.id, tmp_path / "d.tar"), signers
    )
    assert (report.state, report.confirmed) == (State.DISPUTED, False)


def test_a_rejected_finding_is_shown_as_refused_by_its_signer(
    faulty: Faulty, signers: Path, tmp_path: Path
) -> None:
    from plumbline_mcp.findings import confirming

    stored = reviewing.rebuilt(faulty.workspace, faulty_export.found(faulty))
    ticket = confirming.ask(faulty.workspace, stored.finding.id, PROPOSER)
    reviewing.decided(faulty.workspace, ticket, "reject", "as published")
    confirming.decide(faulty.workspace, stored.finding.id, PROPOSER)
    report = verify_evidence(
        export_evidence(faulty.workspace, stored.finding.id, tmp_path / "r.tar"), signers
    )
    assert (report.state, report.confirmed) == (State.REFUSED, False)
    assert [one.decision.value for one in report.signatures] == ["reject"]


def test_the_examples_signature_proves_nothing_to_others(tmp_path: Path, signers: Path) -> None:
    faulty = faulty_export.make(tmp_path, "example")
    stored = reviewing.confirmed(faulty.workspace, faulty_export.found(faulty))
    archive = export_evidence(faulty.workspace, stored.finding.id, tmp_path / "example.tar")
    own = faulty.workspace.approvals.trust.allowed_signers
    for keys in (signers, own):
        with pytest.raises(EvidenceRefused) as raised:
            verify_evidence(archive, keys)
        assert "plumbline-evidence-" not in raised.value.message
    assert str(own) in raised.value.message
    report = verify_evidence(archive, own, example=True)
    assert (report.state, report.example, report.confirmed) == (State.CONFIRMED, True, False)


# --- what does not --------------------------------------------------------------------------------------


def test_of_two_hundred_single_changed_bytes_each_is_refused(
    archive: Path, signers: Path, tmp_path: Path
) -> None:
    raw = archive.read_bytes()
    draw = random.Random(200)
    refused = 0
    changed = tmp_path / "changed.tar"
    for _ in range(200):
        at = draw.randrange(len(raw))
        changed.write_bytes(raw[:at] + bytes([raw[at] ^ draw.randrange(1, 256)]) + raw[at + 1 :])
        try:
            verify_evidence(changed, signers)
        except EvidenceRefused:
            refused += 1
    assert refused == 200


def test_a_changed_byte_is_refused_also_where_the_index_was_made_to_fit(
    archive: Path, signers: Path, tmp_path: Path
) -> None:
    """The first byte of each file but raw records, its last, and some between."""
    files = contents(archive)
    draw, held = random.Random(7), []
    for name in sorted(files.keys() - {"evidence.json"}):
        raw = files[name]
        if not raw or (name.startswith("runs/") and not name.endswith(("manifest.json", "job.json"))):
            continue
        for at in {0, len(raw) - 1, *(draw.randrange(len(raw)) for _ in range(8))}:
            forged = files | {name: raw[:at] + bytes([raw[at] ^ 0x04]) + raw[at + 1 :]}
            try:
                verify_evidence(rewritten(forged, tmp_path / "forged.tar"), signers)
            except EvidenceRefused:
                continue
            held.append((name, raw[max(0, at - 40) : at + 5]))
    assert held == []


def changed_json(name: str, change: Callable[[Any], object]) -> Callable[[dict[str, bytes]], None]:
    def apply(files: dict[str, bytes]) -> None:
        real = next(known for known in files if known.startswith(name))
        value = json.loads(files[real])
        change(value)
        files[real] = canonical(value).encode() + b"\n"

    return apply


FORGERIES: dict[str, Callable[[dict[str, bytes]], object]] = {
    "another cause": changed_json("finding.json", lambda v: v.update(cause="something else entirely")),
    "another place": changed_json(
        "finding.json", lambda v: v["claim"]["place"].update(tensor="lm_head.weight")
    ),
    "another proposer": changed_json("finding.json", lambda v: v.update(proposer="somebody")),
    "a verification that agrees instead": changed_json(
        "verifications.json", lambda v: v[0]["submission"].update(reason="surely")
    ),
    "a comparison that nobody made": changed_json(
        "verifications.json", lambda v: v[0]["comparison"].update(result="dispute")
    ),
    "no verification": changed_json("verifications.json", lambda v: v.clear()),
    "no signature": changed_json("approvals/", lambda v: v["decisions"].clear()),
    "another reason": changed_json(
        "approvals/",
        lambda v: v["decisions"][0].update(
            statement=v["decisions"][0]["statement"].replace("seen in", "not in")
        ),
    ),
    "another policy": changed_json(
        "approvals/",
        lambda v: v["request"]["content"].update(
            policy=v["request"]["content"]["policy"].replace("solo", "duo")
        ),
    ),
    "another title": changed_json("approvals/", lambda v: v["request"].update(title="confirm everything")),
    "a skipped state": changed_json("events.json", lambda v: v.pop(1)),
    "another end": changed_json("events.json", lambda v: v[-1].update(state="departure")),
    "another signer in the events": changed_json("events.json", lambda v: v[-1].update(actor="eve")),
    "a cut log": lambda files: files.update(
        {"audit.jsonl": b"".join(files["audit.jsonl"].splitlines(True)[:-1])}
    ),
    "a log without its middle": lambda files: files.update(
        {"audit.jsonl": b"".join(files["audit.jsonl"].splitlines(True)[::2])}
    ),
    "an empty log": lambda files: files.update({"audit.jsonl": b""}),
    "one file more": lambda files: files.update({"notes.txt": b"trust me"}),
    "a run's file more": lambda files: files.update(
        {next(n for n in files if n.startswith("runs/")).rsplit("/", 1)[0] + "/new.json": b"{}"}
    ),
    "no manifest": lambda files: files.pop(next(n for n in files if n.endswith("manifest.json"))),
    "no verdict": lambda files: files.pop(next(n for n in files if n.startswith("verdicts/"))),
    "no finding": lambda files: files.pop("finding.json"),
    "no log": lambda files: files.pop("audit.jsonl"),
    "lists for objects": lambda files: files.update(
        {"events.json": b"[[]]\n", "verifications.json": b"{}\n"}
    ),
    "a nested bomb": lambda files: files.update({"events.json": b"[" * 50_000}),
}


@pytest.mark.parametrize("forgery", sorted(FORGERIES))
def test_an_archive_that_a_forger_made_whole_again_is_refused(
    archive: Path, signers: Path, tmp_path: Path, forgery: str
) -> None:
    files = contents(archive)
    FORGERIES[forgery](files)
    with pytest.raises(EvidenceRefused) as raised:
        verify_evidence(rewritten(files, tmp_path / "forged.tar"), signers)
    assert raised.value.next_step


def test_a_log_whose_tail_was_recomputed_does_not_fit_what_was_signed(
    archive: Path, signers: Path, tmp_path: Path
) -> None:
    from approvals.audit import AuditEntry

    files = contents(archive)
    entries = [AuditEntry.model_validate_json(line) for line in files["audit.jsonl"].splitlines()]
    before = entries[1].prev
    for number in range(1, len(entries)):
        detail = {**entries[number].detail, "note": "rewritten"} if number == 1 else entries[number].detail
        new = entries[number].model_copy(update={"prev": before, "detail": detail})
        entries[number] = new.model_copy(update={"hash": new.computed_hash()})
        before = entries[number].hash
    files["audit.jsonl"] = b"".join(canonical(e.model_dump(mode="json")).encode() + b"\n" for e in entries)
    with pytest.raises(EvidenceRefused, match="signed another audit log"):
        verify_evidence(rewritten(files, tmp_path / "forged.tar"), signers)


def test_keys_that_the_reader_does_not_know_or_revoked_do_not_count(
    archive: Path, signers: Path, tmp_path: Path
) -> None:
    other = reviewing.make_roots(tmp_path / "other", reviewing.REVIEWER) / "allowed_signers"
    with pytest.raises(EvidenceRefused, match="not enrolled") as raised:  # another key in the same name
        verify_evidence(archive, other)
    assert "allowed_signers" in raised.value.next_step
    revoked = tmp_path / "revoked"
    revoked.write_text(signers.read_text().split(" ", 2)[2])
    with pytest.raises(EvidenceRefused, match="revoked"):
        verify_evidence(archive, signers, revoked)
    empty = tmp_path / "empty"
    empty.write_text("")
    report = verify_evidence(archive, empty)
    assert (report.state, report.confirmed) == (State.CONFIRMED, False)
    past = tmp_path / "past"
    past.write_text(signers.read_text().replace('@v1"', '@v1",valid-before="20200101Z"'))
    with pytest.raises(EvidenceRefused):
        verify_evidence(archive, past)


def test_an_archive_whose_signer_the_reader_does_not_list_holds_and_is_not_confirmed(
    archive: Path, signers: Path, tmp_path: Path
) -> None:
    somebody = reviewing.make_roots(tmp_path / "somebody", "somebody-else") / "allowed_signers"
    report = verify_evidence(archive, somebody)
    assert (report.state, report.confirmed) == (State.CONFIRMED, False)
    assert [one.listed for one in report.signatures] == [False]
    assert verify_evidence(archive, signers).confirmed
    files = contents(archive)
    name = next(one for one in files if one.startswith("approvals/"))
    ticket = json.loads(files[name])
    key = signers.parent / "keys" / reviewing.REVIEWER
    ticket["decisions"][0]["signature"] = sign(b"another text", key, NAMESPACE, tty=False)
    files[name] = canonical(ticket).encode() + b"\n"
    with pytest.raises(EvidenceRefused, match="does not hold"):  # no signature of this text, whoever signed
        verify_evidence(rewritten(files, tmp_path / "forged.tar"), somebody)


def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, signers: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        verify_evidence(tmp_path / "nothing.tar", signers)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(EvidenceRefused):
        verify_evidence(tmp_path / "text", signers)
    target = io.BytesIO()
    tar.write(target, [("other.json", b"{}")])
    (tmp_path / "other.tar").write_bytes(target.getvalue())
    with pytest.raises(EvidenceRefused, match=r"does not begin with evidence\.json"):
        verify_evidence(tmp_path / "other.tar", signers)
    with pytest.raises(UsageError, match="there is no file") as raised:
        verify_evidence(tmp_path / "other.tar", tmp_path / "none")
    assert "allowed_signers" in raised.value.next_step


def test_an_export_never_overwrites_and_leaves_nothing_half_written(archive: Path, faulty: Faulty) -> None:
    before = archive.read_bytes()
    finding = faulty_export.found(faulty).finding.id
    with pytest.raises(UsageError, match="already a file"):
        export_evidence(faulty.workspace, finding, archive)
    assert archive.read_bytes() == before
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
