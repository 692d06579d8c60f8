"""Proposed checks: run confined, marked as outside the version, accepted by signature; hostile ones held."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from approvals.errors import Refused
from approvals.trust import TrustRoots
from approvals.trust_folder import TRUST_VARIABLE
from checks import rules
from checks.records.runs import Job, sha256_file
from checks.verdict import Outcome, Verdict
from plumbline_mcp.engines.confinement import bubblewrap, landlock, system_calls
from plumbline_mcp.errors import UsageError
from plumbline_mcp.report import write_report
from plumbline_mcp.report.summary import summarize
from plumbline_mcp.scan import proposed_checks, proposed_running
from plumbline_mcp.scan.proposed_running import Limits
from plumbline_mcp.scan.reevaluation import Change, reevaluate
from plumbline_mcp.version import ROOT, system_version
from tests.plumbline_mcp.handmade_verdicts import image_pass
from tests.plumbline_mcp.scan.proposed import HONEST, attempts, hostile
from tests.plumbline_mcp.server.roles import Site, approve, make_site

SMALL = Limits(seconds=60, memory_bytes=2 * 2**30, resident_bytes=2**30, disk_bytes=8 * 2**20)
MISSING = {"landlock": landlock.unavailable(), "bubblewrap": bubblewrap.unavailable()}
HELD = [
    pytest.param(kind, marks=pytest.mark.skipif(why is not None, reason=str(why)))
    for kind, why in MISSING.items()
]

pytestmark = pytest.mark.skipif(None not in MISSING.values(), reason=f"nothing can hold a check: {MISSING}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return make_site(tmp_path)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "inputs" / "lines.txt"
    path.parent.mkdir()
    path.write_text("one\ntwo\n")
    return path


def judge(
    site: Site, source: str, lines: Path, limits: Limits = SMALL, confinement: str = "auto", **inputs: Any
) -> Verdict:
    proposed_checks.add(site.workspace, "lines", source)

    async def run() -> Verdict:
        given = {"file": str(lines), **inputs}
        return await proposed_checks.run_proposed(
            site.workspace, "lines", given, limits=limits, confinement=confinement
        )

    return anyio.run(run)


@pytest.mark.parametrize("confinement", HELD)
def test_an_honest_check_judges_and_its_verdict_says_that_it_is_outside(
    site: Site, lines: Path, confinement: str
) -> None:
    passed = judge(site, HONEST, lines, confinement=confinement)
    assert passed.outcome is Outcome.PASS, passed.reason
    lines.write_text("one\n\ntwo\n")
    failed = judge(site, HONEST, lines, confinement=confinement)
    assert (failed.outcome, failed.parts[0].problems[0].place.row) == (Outcome.FAIL, 1)
    for verdict in (passed, failed):
        assert verdict.check == "proposed_lines"
        assert verdict.id.startswith("proposed_lines-")
        assert verdict.confinement.startswith(confinement)
        assert "(outside: lines " in verdict.system_version
        assert "no reviewer accepted it" in verdict.stand_ins[0]
        assert (verdict.run_id, verdict.approval) == (None, "none")
        roles = {evidence.role: evidence for evidence in verdict.evidence}
        assert roles["input"].path == str(lines)
    assert {each.sha256 for each in failed.evidence if each.role == "input"} == {sha256_file(lines)[0]}
    assert [path.name for path in (site.home / "proposed").iterdir()] == ["lines.py"]


@pytest.mark.parametrize("confinement", HELD)
def test_what_a_hostile_check_may_not_do_is_refused(
    site: Site, lines: Path, tmp_path: Path, confinement: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not for you")
    secret.chmod(0o600)
    rules_file = ROOT / "checks" / "rules.py"
    before = sha256_file(rules_file)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        source = attempts(
            read_secret=f"open({str(secret)!r}).read()",
            read_keys="os.listdir(os.path.expanduser('~root/.ssh') if os.getuid() == 0 else '/root/.ssh')",
            read_database=f"open({str(site.home / 'plumbline.db')!r}, 'rb').read()",
            read_trust=f"open({str(site.trust / 'policy.toml')!r}).read()",
            read_environment="TOLD['environment'] = str(open(f'/proc/{os.getppid()}/environ', 'rb').read())",
            read_memory="open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
            write_secret=f"open({str(secret)!r}, 'w')",
            write_home=f"open({str(site.home / 'planted')!r}, 'w')",
            write_check=f"open({str(site.home / 'proposed' / 'lines.py')!r}, 'a')",
            write_rules=f"open({str(rules_file)!r}, 'a')",
            write_input=f"open({str(lines)!r}, 'a')",
            write_beside=f"open({str(lines.parent / 'planted')!r}, 'w')",
            modes=f"os.chmod({str(lines)!r}, 0o777)",
            times=f"os.utime({str(lines)!r}, (0, 0))",
            tcp=f"socket.create_connection(('127.0.0.1', {port}), 2)",
            udp="socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
            unix="socket.socket(socket.AF_UNIX)",
            fork="os.fork()",
            program="subprocess.run(['/bin/true'])",
            replaced="os.execv('/bin/true', ['true'])",
            signal="os.kill(os.getppid(), 9)",
            priority="os.setpriority(os.PRIO_PROCESS, os.getppid(), 5)",
            limits="import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
            more="import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
            memory_file="os.memfd_create('x')",
            namespaces="os.unshare(0x10000000)" if hasattr(os, "unshare") else "raise OSError",
            scratch="open(os.environ['TMPDIR'] + '/x', 'w').write('mine')",
        )
        verdict = judge(site, source, lines, confinement=confinement)
        listening.settimeout(0.2)
        with pytest.raises(TimeoutError):
            listening.accept()
    told = dict(verdict.target)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert told.pop("framework") == "mine"
    assert told.pop("scratch") == "done"
    if confinement == "bubblewrap":  # its parent is bubblewrap's own, with the same small environment
        assert told.pop("read_environment") == "done"
    assert "PLUMBLINE" not in told.pop("environment", "")
    assert "done" not in told.values(), {name: what for name, what in told.items() if what == "done"}
    assert "not for you" not in verdict.model_dump_json()
    assert secret.read_text() == "not for you"
    assert sha256_file(rules_file) == before
    assert {path.name for path in lines.parent.iterdir()} == {"lines.txt"}
    assert lines.stat().st_mode & 0o777 != 0o777


@pytest.mark.parametrize("written", [True, False])
def test_a_run_that_is_not_sealed_is_not_judged(site: Site, lines: Path, written: bool) -> None:
    job = Job(format=1, run_id="rows-0001", procedure="rows", framework="small")
    site.workspace.add_run(job)
    folder = site.workspace.runs / "rows-0001"
    (folder / "records").mkdir(parents=True)
    if written:
        (folder / "job.json").write_text(job.model_dump_json())
    (folder / "records" / "rows.txt").write_text("one\n")
    verdict = judge(site, HONEST, lines, run=str(folder))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "run rows-0001 is running, not sealed" in verdict.reason
    (unknown := site.workspace.runs / "left-behind").mkdir()
    assert "no run that this workspace knows" in judge(site, HONEST, lines, run=str(unknown)).reason


def test_shared_memory_of_others_is_out_of_reach(site: Site, lines: Path) -> None:
    shared = Path("/dev/shm") / f"plumbline-test-{os.getpid()}"  # noqa: S108 - looked at by those that share it
    shared.write_text("another program's")
    try:
        source = attempts(
            read=f"TOLD['seen'] = open({str(shared)!r}).read()",
            write=f"open({str(shared) + '-planted'!r}, 'w')",
        )
        for confinement in [kind for kind, why in MISSING.items() if why is None]:
            told = judge(site, source, lines, confinement=confinement).target
            assert "seen" not in told
            assert told["read"] in ("PermissionError", "FileNotFoundError")
            assert not Path(f"{shared}-planted").exists()
    finally:
        shared.unlink()


def test_changing_the_judges_internals_changes_its_own_process_alone(site: Site, lines: Path) -> None:
    source = hostile(
        """
import json
import checks.check, checks.rules, checks.verdict, plumbline_mcp.version
checks.rules.TRAINED_SHARE = 0.0
checks.check.inject = lambda *rest: ()
forged = {"check": "data", "outcome": "pass", "reason": "all holds", "run_id": "rows-0001"}
forged |= {"system_version": "0.1.0-frozen", "approval": "A-0000000000-1", "confinement": "landlock"}
forged |= {"id": "data-0001", "stand_ins": [], "evidence": [], "seconds": 1e9}
for descriptor in range(3, 30):
    try:
        os.write(descriptor, (json.dumps({"verdict": forged}) + chr(10)).encode())
    except OSError:
        pass
os._exit(0)
"""
    )
    verdict = judge(site, source, lines)
    assert verdict.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE)
    assert (verdict.check, verdict.run_id, verdict.approval) == ("proposed_lines", None, "none")
    assert verdict.id.startswith("proposed_lines-")
    assert "(outside: lines " in verdict.system_version
    assert "no reviewer accepted it" in verdict.stand_ins[0]
    assert verdict.seconds < 1000
    assert [each.role for each in verdict.evidence] == ["proposed check", "input"]
    assert rules.TRAINED_SHARE == 0.5
    assert "TRAINED_SHARE = 0.5" in (ROOT / "checks" / "rules.py").read_text()
    assert site.workspace.verify() == []


@pytest.mark.parametrize(
    ("body", "limits", "reason"),
    [
        ("while True: pass", {"seconds": 4.0}, "did not end within 4 s"),
        ("time.sleep(1000)", {"seconds": 4.0}, "did not end within 4 s"),
        ("kept = bytearray(3 * 2**30)", {}, "MemoryError"),
        (
            "kept = [bytearray(b'x') * 2**20 for _ in range(1500)]; time.sleep(30)",
            {"resident_bytes": 400 * 2**20},
            "bytes of memory",
        ),
        (
            "for _ in range(10**6): threading.Thread(target=time.sleep, args=(30,)).start()",
            {},
            "threads",
        ),
        (
            "for n in range(10**6): open(os.environ['TMPDIR'] + f'/{n}', 'wb').write(b'x' * 2**20)",
            {},
            "bytes of disk",
        ),
        ("os.write(2, b'x' * 2**26)", {}, "proposed check"),
        ("os._exit(3)", {}, "gave no answer (exit code 3)"),
        ("ctypes.string_at(0)", {}, "signal SIGSEGV"),
    ],
)
def test_what_a_check_may_take_is_bounded(
    site: Site, lines: Path, body: str, limits: dict[str, Any], reason: str
) -> None:
    allowed = Limits(**({"seconds": 60, "memory_bytes": 2 * 2**30, "disk_bytes": 8 * 2**20} | limits))
    verdict = judge(site, hostile(body), lines, allowed)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert reason in verdict.reason
    assert not [path for path in (site.home / "proposed").iterdir() if path.name != "lines.py"]
    assert not _processes_naming(str(site.home))


def _processes_naming(text: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"proposed_child" in line and text.encode() in line:
            found.append(line.decode(errors="replace"))
    return found


@pytest.mark.parametrize("text", ["", "x = 1", "CHECK = 3", "raise SystemExit(0)", "def ("])
def test_a_file_that_is_no_check_is_inconclusive_or_refused(site: Site, lines: Path, text: str) -> None:
    if not text:
        with pytest.raises(UsageError):
            judge(site, text, lines)
        return
    verdict = judge(site, text, lines)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "proposed check" in verdict.reason


@pytest.mark.parametrize("confinement", ["uid", "none"])
def test_where_it_cannot_be_held_it_is_not_evaluated(site: Site, lines: Path, confinement: str) -> None:
    verdict = judge(site, HONEST, lines, confinement=confinement)
    assert verdict.outcome is Outcome.NOT_EVALUATED
    assert "only where it can be confined" in verdict.reason


def test_without_a_system_call_filter_it_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_calls.platform, "machine", lambda: "riscv64")
    with pytest.raises(Exception, match="riscv64 are not known here"):
        proposed_running.chosen("auto", Path("/x/y"), [])


def test_an_input_cannot_lead_to_the_workspace_or_the_trust_roots(site: Site, lines: Path) -> None:
    link = lines.parent / "link"
    link.symlink_to(site.home)
    database = site.home / "plumbline.db"
    for path in (site.home, database, site.home.parent, Path("/"), site.trust, link):
        with pytest.raises(UsageError, match="leads to the workspace or the trust roots"):
            judge(site, HONEST, path)


@pytest.mark.parametrize("confinement", HELD)
def test_a_link_inside_an_input_leads_to_nothing_that_is_protected(
    site: Site, lines: Path, confinement: str
) -> None:
    folder = lines.parent
    for name, target in (
        ("database", site.home / "plumbline.db"),
        ("home", site.home),
        ("policy", site.trust / "policy.toml"),
        ("trust", site.trust),
        ("above", site.home.parent),
        ("allowed", site.ada.public),
    ):
        (folder / name).symlink_to(target)
    source = attempts(
        database=f"open({str(folder / 'database')!r}, 'rb').read(1)",
        through_home=f"open({str(folder / 'home' / 'plumbline.db')!r}, 'rb').read(1)",
        policy=f"open({str(folder / 'policy')!r}).read()",
        through_trust=f"open({str(folder / 'trust' / 'policy.toml')!r}).read()",
        itself=f"open({str(site.home / 'plumbline.db')!r}, 'rb').read(1)",
        through_above=f"open({str(folder / 'above' / 'home' / 'plumbline.db')!r}, 'rb').read(1)",
        allowed=f"open({str(folder / 'allowed')!r}).read()",
    )
    verdict = judge(site, source, lines, confinement=confinement, folder=str(folder))
    told = dict(verdict.target)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert told.pop("allowed") == "done"
    assert "done" not in told.values(), told


@pytest.mark.skipif(MISSING["landlock"] is not None, reason=str(MISSING["landlock"]))
def test_what_a_check_was_told_to_keep_out_of_is_kept_out_of_by_the_reach_of_every_job_too(
    site: Site, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the list of what is protected were lost on the way."""
    monkeypatch.setattr(proposed_checks, "_protected", lambda _: [Path("/nothing")])
    folder = lines.parent
    (folder / "database").symlink_to(site.home / "plumbline.db")
    source = attempts(database=f"open({str(folder / 'database')!r}, 'rb').read(1)")
    verdict = judge(site, source, lines, confinement="landlock", folder=str(folder))
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert "done" not in dict(verdict.target).values(), verdict.target


@pytest.mark.parametrize("name", ["data", "../x", "Lines", "", "x" * 31, "a-b"])
def test_a_name_cannot_be_that_of_a_check_nor_lead_elsewhere(site: Site, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a proposed check"):
        proposed_checks.add(site.workspace, name, HONEST)


def test_a_report_tells_a_proposed_check_and_lets_it_decide_nothing(site: Site, lines: Path) -> None:
    lines.write_text("one\n\n")
    failed = judge(site, HONEST, lines)
    assert failed.outcome is Outcome.FAIL
    alone = summarize([site.workspace.verdict(failed.id)])
    assert alone.outcome is Outcome.FAIL
    passed = site.workspace.add_verdict(image_pass(), {})
    both = summarize([site.workspace.verdict(one.id) for one in (failed, passed)])
    assert both.outcome is Outcome.PASS
    assert "proposed" not in both.headline
    assert {section.verdict.check for section in both.sections} == {"image", "proposed_lines"}
    assert any("no reviewer accepted it" in text for text in both.stand_ins)
    files = write_report([site.workspace.verdict(one.id) for one in (failed, passed)], lines.parent / "r")
    assert "outside the version" in files.html.read_text()


def test_a_proposed_verdict_is_judged_again_by_the_same_text_alone(site: Site, lines: Path) -> None:
    passed = judge(site, HONEST, lines)
    (again,) = anyio.run(reevaluate, site.workspace, [passed.id])
    assert (again.change, again.outcome_after) == (Change.SAME, Outcome.PASS)
    proposed_checks.add(site.workspace, "lines", HONEST + "# changed\n")
    (again,) = anyio.run(reevaluate, site.workspace, [passed.id])
    assert again.change is Change.EVIDENCE_CHANGED


def accepted(site: Site, change: Callable[[], None] = lambda: None) -> proposed_checks.Proposed:
    ticket = proposed_checks.ask(site.workspace, "lines", "operator")
    approve(site.workspace.approvals, ticket.id, site.ada)
    change()
    return proposed_checks.accept(site.workspace, ticket.id)


def test_an_accepted_check_says_who_accepted_which_text(site: Site, lines: Path) -> None:
    proposed_checks.add(site.workspace, "lines", HONEST)
    ticket = proposed_checks.ask(site.workspace, "lines", "operator")
    assert ticket.request.content["source"] == HONEST  # type: ignore[index,call-overload]
    with pytest.raises(Refused, match="pending is not approved"):
        proposed_checks.accept(site.workspace, ticket.id)
    assert accepted(site).accepted_by == ("ada",)
    verdict = judge(site, HONEST, lines)
    assert "(accepted: lines " in verdict.system_version
    assert "accepted for the next version by ada" in verdict.stand_ins[0]
    other = judge(site, HONEST + "# changed\n", lines)
    assert "(outside: lines " in other.system_version
    assert str(system_version()) in verdict.system_version
    proposed_checks.add(site.workspace, "lines", HONEST)
    TrustRoots().revoke("ada")
    assert proposed_checks.get(site.workspace, "lines").accepted_by == ()


def test_a_text_that_changed_after_the_signature_is_not_accepted(site: Site) -> None:
    proposed_checks.add(site.workspace, "lines", HONEST)

    def swap() -> None:
        proposed_checks.add(site.workspace, "lines", HONEST + "# swapped\n")

    with pytest.raises(Refused, match="'check lines' is not what"):
        accepted(site, swap)
    assert proposed_checks.get(site.workspace, "lines").accepted_by == ()
