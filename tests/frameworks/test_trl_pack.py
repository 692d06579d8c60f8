"""The trl pack in its own environment: SFTTrainer's own rows, steps, load and export.

Rows are compared with plain jinja2 and tokenizers, which share no code with the framework.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from plumbline_mcp.scan.example_spec import ReleaseSpec
from tests.frameworks.pack_jobs import ROWS, Jobs, lines, logged, pack_environment, sequences
from tests.frameworks.plain_rendering import rendered

pytestmark = pytest.mark.environment
LENGTH = 512


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs("trl", tmp_path_factory.mktemp("trl"), pack_environment("trl"))


@pytest.fixture(scope="module")
def expected(jobs: Jobs) -> list[list[int]]:
    return [rendered(jobs.model, conversation) for conversation in jobs.conversations()]


def supervised(labels: list[int]) -> int:
    return sum(label != -100 for label in labels)


def documents(found: list[dict[str, Any]]) -> list[list[int]]:
    """The token ids of every recorded document."""
    return [
        entry["input_ids"][start:end]
        for entry in found
        for start, end in zip([0, *entry["ends"]], entry["ends"], strict=False)
    ]


def test_each_row_is_recorded_under_its_number_in_every_epoch(jobs: Jobs, expected: list[list[int]]) -> None:
    folder = jobs.run("rows", batch_size=4)
    orders = []
    for epoch in (1, 2):
        found = sequences(folder, epoch)
        orders.append([entry["row"][0] for entry in found])
        assert sorted(orders[-1]) == list(range(ROWS))
        for entry in found:
            real = [
                token for token, on in zip(entry["input_ids"], entry["attention_mask"], strict=True) if on
            ]
            assert real == expected[entry["row"][0]][:1024]
            assert 0 < supervised(entry["labels"]) < len(real)
    assert orders[0] != orders[1]


def test_tool_calls_keep_their_own_arguments(jobs: Jobs, expected: list[list[int]]) -> None:
    """A plain column would give each call the arguments of every other call, empty."""
    calling = [number for number, row in enumerate(jobs.conversations()) if "tool_calls" in json.dumps(row)]
    found = {entry["row"][0]: entry for entry in sequences(jobs.run("rows", batch_size=4), 1)}
    assert len(calling) > 5
    for number in calling:
        assert found[number]["input_ids"][: len(expected[number])] == expected[number][:1024]


def test_bfd_packs_whole_documents_and_cuts_the_longest(jobs: Jobs, expected: list[list[int]]) -> None:
    found = sequences(jobs.run("rows", epochs=1, packing=True, max_length=LENGTH), 1)
    assert sorted(documents(found)) == sorted(ids[:LENGTH] for ids in expected)
    for entry in found:
        starts = [position for position, value in enumerate(entry["position_ids"]) if value == 0]
        assert starts == [0, *entry["ends"][:-1]]
    assert any(len(ids) > LENGTH for ids in expected)


def test_bfd_split_keeps_every_token(jobs: Jobs, expected: list[list[int]]) -> None:
    folder = jobs.run("rows", epochs=1, packing=True, packing_strategy="bfd_split", max_length=LENGTH)
    parts = [ids[start : start + LENGTH] for ids in expected for start in range(0, len(ids), LENGTH)]
    assert sorted(documents(sequences(folder, 1))) == sorted(parts)


def test_wrapped_cuts_one_stream_of_tokens(jobs: Jobs, expected: list[list[int]]) -> None:
    folder = jobs.run(
        "rows", epochs=1, packing=True, packing_strategy="wrapped", max_length=LENGTH, batch_size=1
    )
    stream = [token for ids in expected for token in ids]
    cut = [stream[start : start + LENGTH] for start in range(0, len(stream), LENGTH)]
    assert sorted(entry["input_ids"] for entry in sequences(folder, 1)) == sorted(cut)


def test_completion_only_loss_supervises_the_last_reply_alone(jobs: Jobs) -> None:
    settings = {"epochs": 1, "batch_size": 4, "assistant_only_loss": False, "completion_only_loss": True}
    found = sequences(jobs.run("rows", **settings), 1)
    turns = {
        number: sum(message["role"] == "assistant" for message in row["messages"])
        for number, row in enumerate(jobs.conversations())
    }
    whole = {entry["row"][0]: entry for entry in sequences(jobs.run("rows", batch_size=4), 1)}
    fewer = 0
    for entry in found:
        number = entry["row"][0]
        on = [position for position, label in enumerate(entry["labels"]) if label != -100]
        assert on == list(range(on[0], on[-1] + 1))  # one stretch of tokens
        if turns[number] > 1 and 1 < supervised(entry["labels"]) < supervised(whole[number]["labels"]):
            fewer += 1
    assert fewer


@pytest.mark.parametrize("ways", [{"accumulation": 2}, {"ranks": 2}, {"ranks": 2, "layout": "fsdp2"}])
def test_one_global_batch_gives_one_loss_however_it_is_shared(jobs: Jobs, ways: dict[str, Any]) -> None:
    common = {"steps": 1, "max_length": 128}
    whole = jobs.run("train_step", batch_size=4, **common)
    shared = jobs.run("train_step", batch_size=2, **common, **ways)
    assert logged(shared, "loss") == pytest.approx(logged(whole, "loss"), rel=1e-5)
    assert logged(shared, "grad_norm") == pytest.approx(logged(whole, "grad_norm"), rel=1e-4)


def test_the_step_holds_what_a_fused_head_leaves_to_see(jobs: Jobs) -> None:
    folder = jobs.run("train_step", batch_size=4, steps=1, max_length=128)
    (step,) = lines(folder, "steps")
    tensors = load_file(folder.path / "records/rank-00000/step-000001.safetensors")
    labels, logprob = tensors["micro.0.labels"], tensors["micro.0.logprob"]
    on = labels[:, 1:] != -100
    assert step["micro_batches"][0]["supervised"] == on.sum() > 0
    assert -logprob[:, :-1][on].mean() == pytest.approx(logged(folder, "loss")[0], rel=1e-5)


def test_the_parser_is_given_the_recipe_and_refuses_what_it_does_not_know(jobs: Jobs) -> None:
    folder = jobs.run("dry_run", packing=True, schedule="cosine", learning_rate=3e-5)
    arguments = json.loads((folder.output / "arguments.json").read_text())
    assert (arguments["packing"], arguments["lr_scheduler_type"]) == (True, "cosine")
    assert (arguments["learning_rate"], arguments["gradient_checkpointing"]) == (3e-5, False)
    assert {line["when"] for line in lines(folder, "model")} == {"meta"}


TURN = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "settings", "sentence"),
    [
        (TURN, {}, "not training-compatible (missing prefix-preservation or `{% generation %}` markers)"),
        (TURN + "{% generation %}{% endgeneration %}", {}, "at least one example has no assistant tokens"),
        (
            TURN,
            {"assistant_only_loss": False, "lora": {"target_modules": ["lm_head"]}},
            "to `lm_head` is not",
        ),
        (TURN, {"assistant_only_loss": False, "router_aux_loss_coef": 0.1}, ""),
    ],
    ids=["no marks", "empty marks", "adapted head", "taken"],
)
def test_the_dry_run_refuses_what_sft_trainer_refuses_when_it_is_made(
    jobs: Jobs, tmp_path: Path, template: str, settings: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(template)
    folder = jobs.ended("dry_run", template=path, **settings)
    assert [each.code for each in folder.exits()] == [3 if sentence else 0], jobs.said(folder)
    if sentence:
        last = jobs.said(folder).strip().splitlines()[-1]
        assert last.startswith("refused: ")
        assert sentence in last


def test_sft_trainer_loads_what_the_release_holds(jobs: Jobs) -> None:
    found = lines(jobs.run("load", dtype="bfloat16"), "model")
    first, second = (
        {line["name"]: line["sha256"] for line in found if line["when"] == when}
        for when in ("loaded-1", "loaded-2")
    )
    assert first == second
    assert {line["dtype"] for line in found if line["kind"] == "parameter"} == {"bfloat16"}


def test_the_first_run_logs_every_step_and_records_none_in_full(jobs: Jobs) -> None:
    folder = jobs.run(
        "first_run", batch_size=1, steps=3, max_length=64, lora={"r": 2, "target_modules": ["q_proj"]}
    )
    assert [step["recorded"] for step in lines(folder, "steps")] == ["metrics"] * 3
    assert len(logged(folder, "loss")) == 3
    held = {name for step in lines(folder, "steps") for group in step["groups"] for name in group["params"]}
    assert held
    assert all("lora_" in name for name in held)


def test_the_export_holds_model_and_tokenizer(jobs: Jobs) -> None:
    names = {path.name for path in jobs.run("export").output.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names


@pytest.mark.parametrize("version", ["0.19.1", "0.24.0", "0.27.2"])
def test_the_bindings_run_on_older_releases(tmp_path: Path, version: str) -> None:
    pins = (
        f"trl=={version}",
        "transformers==4.57.6",
        "datasets==4.5.0",
        "accelerate==1.10.1",
        "jinja2==3.1.6",
    )
    spec = ReleaseSpec(family="llama", quantized=False)
    jobs = Jobs("trl", tmp_path, pack_environment("trl", pins), spec)
    plain = tmp_path / "plain.jsonl"  # these versions know no JSON columns
    rows = [json.dumps(row) for row in jobs.conversations() if "tools" not in row]
    plain.write_text("\n".join(rows))
    found = sequences(jobs.run("rows", plain, epochs=1), 1)
    assert sorted(entry["row"][0] for entry in found) == list(range(len(rows)))
    assert len(lines(jobs.run("train_step", plain, batch_size=2, max_length=64), "steps")) == 2
    assert lines(jobs.run("load"), "model")
    assert lines(jobs.run("dry_run"), "model")
