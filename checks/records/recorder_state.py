"""Whether the recorder of a rank says that it recorded everything: else its records prove nothing."""

from checks.records.runs import RunFolder, read_json

FAILED, STATE = "recorder-failed.json", "recorder.json"
"""Left in a rank's folder by a recorder that could not record; what says ``complete`` of one that did."""
_MAX_BYTES = 2**20


def unfinished(run: RunFolder, folder: str) -> str:
    """Why the records of a rank's folder prove nothing; empty where its recorder was closed in good health.

    The text is what the job wrote, so it is untrusted. A recorder that says nothing did not finish.
    """
    if f"{folder}/{FAILED}" in run.manifest:
        mark = read_json(run.verified(f"{folder}/{FAILED}"), _MAX_BYTES)
        told = [str(mark[key]) for key in ("what", "why") if key in mark] if isinstance(mark, dict) else []
        return ": ".join(told)[:300] or "it left no reason"
    if f"{folder}/{STATE}" not in run.manifest:
        return f"it left no {STATE}"
    about = read_json(run.verified(f"{folder}/{STATE}"), _MAX_BYTES)
    state = about.get("state") if isinstance(about, dict) else None
    return "" if state == "complete" else f"{STATE} says {str(state)[:40]!r}, not that it recorded everything"
