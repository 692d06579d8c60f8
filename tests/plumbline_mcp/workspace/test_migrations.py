"""A database of an older version gets what is new and keeps what it holds."""

import sqlite3
from pathlib import Path

from sqlite_utils import Database

from plumbline_mcp.workspace import Workspace
from plumbline_mcp.workspace.database import migrations, write_tx


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
