"""What opening a recorded model takes: its environment, the version of its map, the dtype of its recipe."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from checks.loading.case import is_loadable
from checks.loading.expected import stated_dtype
from checks.records.model_records import RankModel, Recorded
from checks.records.runs import RunFolder, read_json
from checks.references.checkpoints.formats import TORCH_NAMES


def last_recorded(ranks: Sequence[RankModel], moments: Sequence[str]) -> Mapping[str, Recorded]:
    """What is recorded at the last of the moments, over all ranks: the first rank's record of each name."""
    found: dict[str, Recorded] = {}
    when = next((when for when in reversed(moments) if any(rank.at(when) for rank in ranks)), moments[0])
    for rank in ranks:
        for name, entry in rank.at(when).items():
            found.setdefault(name, entry)
    return found


def recipe_dtype(
    setting: JsonValue, recorded: Mapping[str, Recorded], config: Mapping[str, Any]
) -> str | None:
    """The dtype that the recipe names, None where it leaves it to the release.

    ``default`` leaves it to the framework: the release's dtype, or float32, which holds every released value
    exactly; what most of the tensors are is then what all have to be.
    """
    if isinstance(setting, str) and setting in TORCH_NAMES:
        return setting
    counts = Counter(
        entry.line.dtype
        for entry in recorded.values()
        if is_loadable(entry) and entry.line.dtype in TORCH_NAMES
    )
    most = counts.most_common(1)[0][0] if counts else ""
    return most if setting == "default" and most in ("float32", stated_dtype(config)) else None


def environment_of(run: RunFolder) -> dict[str, Any]:
    """What the first rank recorded of its environment, empty where none did."""
    name = next((n for n in run.files("records/") if n.endswith("/environment.json")), None)
    value = read_json(run.verified(name)) if name else {}
    return value if isinstance(value, dict) else {}


def version_run(about: Mapping[str, Any], distribution: str) -> str:
    """The version of a distribution that the job ran, empty where no record says it."""
    entries = about.get("distributions")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("name") == distribution:
            return str(entry.get("version", ""))
    return ""
