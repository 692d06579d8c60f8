"""The worker side of a check: opens, judges and injects; returns the verdict as JSON."""

from typing import Any

import checks
from checks.check import Progress, evaluate
from plumbline_mcp.version import system_version


def evaluate_check(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Judge ``payload["check"]`` on ``payload["inputs"]`` (see `plumbline_mcp.scan.service.run_check`)."""
    check = checks.discover()[payload["check"]]
    inputs = check.inputs.model_validate(payload["inputs"])
    return evaluate(check, inputs, progress, str(system_version())).model_dump(mode="json")
