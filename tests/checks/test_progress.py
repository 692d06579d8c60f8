"""Every check says what it does: the reload and the planted faults, too, which take long on real files."""

from pathlib import Path

from checks.check import evaluate
from checks.export import CHECK
from tests.checks.export_pairs import write_llama


def test_an_export_check_tells_each_of_its_steps_in_order(tmp_path: Path) -> None:
    told: list[tuple[float, float | None, str]] = []

    def tell(done: float, total: float | None, message: str) -> None:
        told.append((done, total, message))

    inputs = {"original": write_llama(tmp_path / "a"), "export": write_llama(tmp_path / "b")}
    evaluate(CHECK, CHECK.inputs.model_validate(inputs), tell)
    messages = [message for _, _, message in told]
    steps = [
        "reading headers",
        "comparing model.embed_tokens.weight",
        "file 1 of 5: comparing config",
        "file 5 of 5: comparing processor",
        "loading the export in transformers, 0 MB",
        "choosing the slice that faults are planted into",
        "planting fault 1 of 8: a dropped tensor",
        "planting fault 8 of 8: a lost processor",
    ]
    places = [next(i for i, message in enumerate(messages) if message.startswith(step)) for step in steps]
    assert places == sorted(places)
    last_weight = max(i for i, message in enumerate(messages) if message.startswith("comparing "))
    assert all(
        total is None or done < total for done, total, _ in told[last_weight + 1 :]
    )  # never "finishing"
