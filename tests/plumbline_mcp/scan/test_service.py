"""What becomes of a check whose worker gives no answer: a stored verdict, never a pass."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from checks.errors import NotEvaluated
from checks.verdict import Outcome
from plumbline_mcp import workers
from plumbline_mcp.errors import WorkerCrashed
from plumbline_mcp.scan.service import run_check
from plumbline_mcp.workspace import Workspace
from tests.checks import tiny_release


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotEvaluated("one step of a chat template took too long", "see it"), Outcome.NOT_EVALUATED),
        (WorkerCrashed("the worker died with signal SIGKILL", "report this"), Outcome.INCONCLUSIVE),
    ],
)
def test_a_worker_without_an_answer_is_a_stored_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: Outcome
) -> None:
    async def ended(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(workers, "call", ended)
    workspace = Workspace.open(tmp_path / "home")
    inputs = {
        "model": tiny_release.write_release(tmp_path / "release"),
        "workload": tiny_release.write_workload(tmp_path / "workload.jsonl"),
        "rows": tiny_release.write_rows(tmp_path / "rows.jsonl", tiny_release.rows()),
    }
    verdict = anyio.run(lambda: run_check(workspace, "data", inputs))
    assert (verdict.outcome, verdict.reason) == (outcome, str(error))
    assert workspace.verdict(verdict.id).verdict.outcome is outcome
