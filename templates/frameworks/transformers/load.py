"""The release as from_pretrained loads it, into memory that the recorder filled before."""

from plumbline_binding.filling import filled
from plumbline_binding.model import load_model


def load(job: dict, recorder: object, number: int) -> "list[str]":
    """Load the release once, with the fill of this number. Returns what stood in for what: nothing."""
    with filled(recorder):
        model = load_model(job)
    recorder.loaded(model, number)
    return []
