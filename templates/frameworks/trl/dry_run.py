"""The recipe through TrlParser, the release's model on the meta device."""

from plumbline_binding.model import built_on_meta
from plumbline_binding.supervised import parse


def dry_run(job: dict, recorder: object, progress: object) -> "list[str]":
    """Parse the recipe and build the model. Returns what stood in for what: nothing."""
    return built_on_meta(job, parse, recorder, progress)
