"""A database of an older version gets what is new and keeps what it holds."""

import sqlite3
from pathlib import Path

from sqlite_utils import Database

from plumbline_mcp.workspace import RunState, Workspace
from plumbline_mcp.workspace.database import migrations, write_tx
from tests.plumbline_mcp.stored_examples import job


def test_a_database_with_only_the_first_migration_gets_the_others_and_keeps_its_rows(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "plumbline.db", isolation_level=None)
    database = Database(connection, execute_plugins=False)
    with write_tx(database):
        migrations.apply(database, stop_before="0002_audit")
        database.execute("insert into ids (kind, last) values ('data', 41)")
    assert not database.table("audit").exists()
    connection.close()
    workspace = Workspace.open(tmp_path)
    assert workspace.new_id("data") == "data-0042"
    assert workspace.verify() == []


def test_runs_of_before_keep_their_order_state_and_digest(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "plumbline.db", isolation_level=None)
    database = Database(connection, execute_plugins=False)
    with write_tx(database):
        migrations.apply(database, stop_before="0003_submitted_runs")
        for number, state, digest in ((2, "sealed", "a" * 64), (1, "running", None)):
            database.table("runs").insert(
                {
                    "run_id": f"rows-000{number}",
                    "procedure": "rows",
                    "framework": "transformers",
                    "state": state,
                    "created": "2026-01-01",
                    "manifest_sha256": digest,
                    "job": job(f"rows-000{number}").model_dump_json(),
                }
            )
    connection.close()
    workspace = Workspace.open(tmp_path)
    runs = workspace.runs_list()
    assert [(run.run_id, run.state, run.manifest_sha256) for run in runs] == [
        ("rows-0001", RunState.RUNNING, None),
        ("rows-0002", RunState.SEALED, "a" * 64),
    ]
    assert {(run.key, run.outcome, run.reason) for run in runs} == {(None, None, "")}
    assert workspace.claim_run("k", "export", job)[0].state is RunState.SUBMITTING


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "plumbline.db", isolation_level=None)
    database = Database(connection, execute_plugins=False)
    try:
        with write_tx(database):
            migrations.apply(database)
            database.execute("create table audit (again)")
    except sqlite3.OperationalError:
        pass
    assert database.table_names() == []
    connection.close()
    assert Workspace.open(tmp_path).verify() == []
