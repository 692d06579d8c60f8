import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checks.verdict import Outcome
from plumbline_mcp.errors import UsageError, WorkspaceError
from plumbline_mcp.workspace import RunState, Workspace
from tests.plumbline_mcp.stored_examples import job, verdict

MANIFEST = "ab" * 32
ROOT = Path(__file__).parents[3]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "home")


def test_a_verdict_comes_back_as_it_was_stored(workspace: Workspace) -> None:
    given = verdict()
    stored = workspace.add_verdict(given, {"model": Path("/m"), "max_length": None, "columns": {"a": "b"}})
    assert stored == given.model_copy(update={"id": "data-0001"})
    found = workspace.verdict("data-0001")
    assert found.verdict == stored
    assert found.inputs == {"model": "/m", "max_length": None, "columns": {"a": "b"}}


def test_ids_count_up_per_kind_and_survive_reopening(workspace: Workspace) -> None:
    assert [workspace.new_id("data"), workspace.new_id("data"), workspace.new_id("export")] == [
        "data-0001",
        "data-0002",
        "export-0001",
    ]
    assert workspace.add_verdict(verdict(), {}).id == "data-0003"
    workspace.close()
    assert Workspace.open(workspace.home).new_id("data") == "data-0004"


def test_an_id_of_a_failed_transaction_is_given_again_but_never_twice(workspace: Workspace) -> None:
    before = workspace.audit.head()
    with pytest.raises(TypeError):
        workspace.add_verdict(verdict(), {"model": object()})
    assert workspace.verdict_count() == 0
    assert workspace.audit.head() == before
    assert workspace.add_verdict(verdict(), {}).id == "data-0001"


@pytest.mark.parametrize("kind", ["", "Data", "../x", "a b", "1a", "a" * 41])
def test_an_id_kind_that_could_be_a_path_or_markup_is_refused(workspace: Workspace, kind: str) -> None:
    with pytest.raises(UsageError):
        workspace.new_id(kind)


def test_each_write_has_its_audit_entry(workspace: Workspace) -> None:
    stored = workspace.add_verdict(verdict(outcome=Outcome.FAIL), {})
    workspace.add_run(job())
    workspace.seal_run("rows-0001", MANIFEST)
    created, *entries = workspace.audit.entries()
    assert (created.event, created.detail) == ("workspace_created", {"kind": "real"})
    assert [(entry.event, entry.subject) for entry in entries] == [
        ("verdict_stored", stored.id),
        ("run_started", "rows-0001"),
        ("run_sealed", "rows-0001"),
    ]
    assert entries[0].detail == {"outcome": "fail", "sha256": workspace.verdict(stored.id).sha256}
    assert entries[2].detail == {"manifest_sha256": MANIFEST}
    assert workspace.audit.verify() is None
    assert workspace.verify() == []


def test_verdicts_are_listed_newest_first_filtered_and_in_pages(workspace: Workspace) -> None:
    for number in range(7):
        workspace.add_verdict(
            verdict("data" if number % 2 else "export", Outcome.FAIL if number < 4 else Outcome.PASS), {}
        )
    ids = [stored.verdict.id for stored in workspace.verdicts()]
    assert ids == [
        "export-0004",
        "data-0003",
        "export-0003",
        "data-0002",
        "export-0002",
        "data-0001",
        "export-0001",
    ]
    assert [s.verdict.id for s in workspace.verdicts(check="data")] == ["data-0003", "data-0002", "data-0001"]
    assert [s.verdict.id for s in workspace.verdicts(check="data", outcome="fail")] == [
        "data-0002",
        "data-0001",
    ]
    first = workspace.verdicts(limit=3)
    second = workspace.verdicts(limit=10, after=first[-1].verdict.id)
    assert [s.verdict.id for s in [*first, *second]] == ids
    assert workspace.verdict_count() == 7
    assert workspace.verdict_count(check="data", outcome=Outcome.FAIL) == 2
    assert workspace.verdicts(after="data-9999") == []


def test_an_unknown_id_names_the_nearest(workspace: Workspace) -> None:
    with pytest.raises(UsageError) as empty:
        workspace.verdict("data-0001")
    assert "no verdict in this workspace yet" in empty.value.next_step
    for _ in range(4):
        workspace.add_verdict(verdict(), {})
    with pytest.raises(UsageError) as raised:
        workspace.verdict("data-00O3")
    assert "data-0003" in raised.value.next_step
    assert raised.value.next_step.count("data-") == 3
    with pytest.raises(UsageError):
        workspace.run("rows-0001")


def test_a_run_is_registered_once_and_sealed_once(workspace: Workspace) -> None:
    assert workspace.add_run(job()).state is RunState.RUNNING
    with pytest.raises(UsageError, match="already a run"):
        workspace.add_run(job())
    sealed = workspace.seal_run("rows-0001", MANIFEST)
    assert (sealed.state, sealed.manifest_sha256, sealed.job) == (RunState.SEALED, MANIFEST, job())
    with pytest.raises(UsageError, match="already ended"):
        workspace.seal_run("rows-0001", "cd" * 32)
    with pytest.raises(UsageError, match="already ended"):
        workspace.end_run("rows-0001", "lost")
    assert workspace.run("rows-0001") == sealed
    with pytest.raises(UsageError):
        workspace.seal_run("rows-0002", MANIFEST)


def test_runs_are_listed_newest_first(workspace: Workspace) -> None:
    for number in range(1, 5):
        workspace.add_run(job(f"rows-{number:04d}"))
    workspace.end_run("rows-0002", RunState.REMOVED, "stopped by the user")
    assert [run.run_id for run in workspace.runs_list(limit=2)] == ["rows-0004", "rows-0003"]
    assert [run.run_id for run in workspace.runs_list(after="rows-0003")] == ["rows-0002", "rows-0001"]
    assert [run.run_id for run in workspace.runs_list(state="removed")] == ["rows-0002"]
    assert (workspace.run_count(), workspace.run_count("running")) == (4, 3)


@pytest.mark.parametrize("digest", ["", "AB" * 32, "ab" * 31, "../" + "a" * 61])
def test_a_seal_needs_a_sha256(workspace: Workspace, digest: str) -> None:
    workspace.add_run(job())
    with pytest.raises(UsageError, match="SHA-256"):
        workspace.seal_run("rows-0001", digest)
    assert workspace.run("rows-0001").state is RunState.RUNNING


@pytest.mark.parametrize(
    "sql",
    [
        "update verdicts set outcome = 'pass'",
        "delete from verdicts",
        "insert or replace into verdicts select * from verdicts",
    ],
)
@pytest.mark.parametrize("recursive_triggers", ["on", "off"])
def test_a_stored_verdict_cannot_be_changed_by_accident(
    workspace: Workspace, sql: str, recursive_triggers: str
) -> None:
    workspace.add_verdict(verdict(outcome=Outcome.FAIL), {})
    with sqlite3.connect(workspace.home / "plumbline.db") as connection:
        connection.execute(f"pragma recursive_triggers = {recursive_triggers}")
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            connection.execute(sql)
    connection.close()


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("update verdicts set outcome = 'pass', verdict = replace(verdict, 'fail', 'pass')", "data-0001"),
        ("update runs set manifest_sha256 = 'cd'", "rows-0001"),
        ("update audit set subject = 'x' where seq = 1", "audit log"),
        ("delete from audit where seq = 1", "audit log"),
        ("delete from audit", "data-0001"),
    ],
)
def test_verify_finds_what_the_owner_of_the_file_changed(workspace: Workspace, sql: str, said: str) -> None:
    workspace.add_verdict(verdict(outcome=Outcome.FAIL), {})
    workspace.add_run(job())
    workspace.seal_run("rows-0001", MANIFEST)
    with sqlite3.connect(workspace.home / "plumbline.db") as connection:
        for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            connection.execute(f"drop trigger {name}")
        connection.execute(sql)
    connection.close()
    assert any(said in problem for problem in workspace.verify())


def test_threads_write_at_once_and_lose_nothing(workspace: Workspace) -> None:
    ids: list[str] = []

    def write() -> None:
        ids.extend(workspace.add_verdict(verdict(), {}).id for _ in range(25))
        workspace.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == [f"data-{number:04d}" for number in range(1, 101)]
    assert workspace.verify() == []


LOOKS = """
import sys
from pathlib import Path
from plumbline_mcp.workspace import Workspace
workspace = Workspace.open(Path(sys.argv[1]), create=False)
print([run.run_id for run in workspace.runs_list()])
workspace.close()
"""


def test_a_workspace_that_is_opened_twice_in_one_process_loses_nothing(workspace: Workspace) -> None:
    workspace.add_run(job("rows-0001"))
    again = Workspace.open(workspace.home)  # nothing of it may let go of the first one's locks
    look = [sys.executable, "-c", LOOKS, str(workspace.home)]
    subprocess.run(look, check=True, cwd=ROOT)  # takes itself for the last one where no lock is held
    again.add_run(job("rows-0002"))
    workspace.add_run(job("rows-0003"))
    seen = subprocess.run(look, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert seen.strip() == "['rows-0003', 'rows-0002', 'rows-0001']"


def test_a_database_of_a_newer_version_is_refused(workspace: Workspace) -> None:
    with workspace.write_tx() as database:
        database.table("_sqlite_migrations").insert(
            {"migration_set": "plumbline", "name": "0099_queue", "applied_at": "2027"}
        )
    workspace.close()
    with pytest.raises(WorkspaceError, match="newer version"):
        Workspace.open(workspace.home)


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "plumbline.db") as connection:
        connection.execute("create table songs (title)")
    connection.close()
    with pytest.raises(WorkspaceError, match="not a database of this program"):
        Workspace.open(tmp_path)
    with sqlite3.connect(tmp_path / "plumbline.db") as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("songs",)]
    connection.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plumbline.db").write_bytes(b"this is no database, only a text that is long enough" * 40)
    with pytest.raises(WorkspaceError, match="no database") as raised:
        Workspace.open(tmp_path)
    assert raised.value.next_step


def test_a_cut_database_is_a_clear_error(workspace: Workspace) -> None:
    for _ in range(50):
        workspace.add_verdict(verdict(), {})
    workspace.close()
    path = workspace.home / "plumbline.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (workspace.home / "plumbline.db-wal").unlink(missing_ok=True)
    with pytest.raises(WorkspaceError, match=r"damaged|cannot be used"):
        Workspace.open(workspace.home).verdicts()


def test_every_connection_waits_and_syncs(workspace: Workspace) -> None:
    with workspace.write_tx() as database:
        pragmas = {
            name: database.conn.execute(f"pragma {name}").fetchone()[0]
            for name in ("journal_mode", "busy_timeout", "synchronous", "foreign_keys", "trusted_schema")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "busy_timeout": 30000,
        "synchronous": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
    }
