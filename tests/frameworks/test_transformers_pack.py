"""The transformers pack in its own environment: its records equal what the framework itself does.

Builds the pack's environment once (a minute without a cache) and runs jobs on the embedded release.
"""

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frameworks.pack_jobs import ROWS, Jobs, pack_environment, sequences
from tests.frameworks.plain_rendering import rendered

pytestmark = pytest.mark.environment


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    return Jobs("transformers", tmp_path_factory.mktemp("transformers"), pack_environment("transformers"))


def test_each_row_is_recorded_once_an_epoch_with_its_own_tokens(jobs: Jobs) -> None:
    folder = jobs.run("rows", batch_size=4)
    expected = [rendered(jobs.model, conversation) for conversation in jobs.conversations()]
    orders = []
    for epoch in (1, 2):
        found = sequences(folder, epoch)
        orders.append([entry["row"][0] for entry in found])
        assert sorted(orders[-1]) == list(range(ROWS))
        for entry in found:
            real = [
                token for token, on in zip(entry["input_ids"], entry["attention_mask"], strict=True) if on
            ]
            assert real == expected[entry["row"][0]]
    assert orders[0] != orders[1] != list(range(ROWS))


def test_padding_is_never_supervised_and_marked_text_always_is(jobs: Jobs) -> None:
    for entry in sequences(jobs.run("rows", batch_size=4), 1):
        for token, label, on in zip(
            *(entry[name] for name in ("input_ids", "labels", "attention_mask")), strict=True
        ):
            assert label in ((token, -100) if on else (-100,))
        assert any(label != -100 for label in entry["labels"])


def test_the_records_are_what_a_real_training_run_feeds_to_the_model(jobs: Jobs, tmp_path: Path) -> None:
    """The Trainer's own ``train()``, with a model that notes what it is called with, is the reference."""
    program = f"""
    import json, sys
    import torch
    from transformers import AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments
    tokenizer = AutoTokenizer.from_pretrained({str(jobs.model)!r})
    rows = []
    for line in open({str(jobs.workload)!r}):
        row = json.loads(line)
        out = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=True,
                                            return_dict=True, return_assistant_tokens_mask=True)
        labels = [t if m else -100 for t, m in zip(out["input_ids"], out["assistant_masks"])]
        rows.append(dict(input_ids=out["input_ids"], attention_mask=out["attention_mask"], labels=labels))
    seen = []
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
        def forward(self, input_ids=None, attention_mask=None, labels=None):
            seen.append([value.tolist() for value in (input_ids, labels, attention_mask)])
            return dict(loss=self.weight.sum(), logits=input_ids)
    arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=4, num_train_epochs=2,
                                  use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
    Trainer(model=Model(), args=arguments, train_dataset=rows,
            data_collator=DataCollatorForSeq2Seq(tokenizer)).train()
    json.dump(seen, open("seen.json", "w"))
    """
    subprocess.run(
        [jobs.environment.python, "-I", "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    folder = jobs.run("rows", batch_size=4)
    recorded = [entry for epoch in (1, 2) for entry in sequences(folder, epoch)]
    flat = [row for batch in seen for row in zip(*batch, strict=True)]
    assert flat == [(entry["input_ids"], entry["labels"], entry["attention_mask"]) for entry in recorded]


def test_settings_change_the_rows_as_the_framework_says(jobs: Jobs) -> None:
    plain = sequences(jobs.run("rows", shuffle=False, epochs=1, max_length=30), 1)
    assert [entry["row"][0] for entry in plain] == list(range(ROWS))
    expected = [rendered(jobs.model, conversation)[:30] for conversation in jobs.conversations()]
    assert [entry["input_ids"] for entry in plain] == expected


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (("question", "answer"), None),
        (("ask", "say"), {"prompt": "ask", "completion": "say"}),
        (("prompt", "reply"), {"prompt": "prompt", "response": "reply"}),
    ],
)
def test_pairs_of_columns_become_conversations(
    jobs: Jobs, tmp_path: Path, names: tuple[str, str], columns: dict[str, str] | None
) -> None:
    workload = tmp_path / "workload.jsonl"
    workload.write_text(json.dumps(dict(zip(names, ("How many?", "Two."), strict=True))) + "\n")
    settings = {"columns": columns} if columns else {}
    (found,) = sequences(jobs.run("rows", workload, epochs=1, **settings), 1)
    messages = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}]
    assert found["input_ids"] == rendered(jobs.model, {"messages": messages})


def test_an_unknown_layout_ends_the_job_with_its_columns(jobs: Jobs, tmp_path: Path) -> None:
    workload = tmp_path / "workload.jsonl"
    workload.write_text('{"body": "text"}\n')
    folder = jobs.ended("rows", workload, epochs=1)
    assert not folder.exits()[0].clean
    assert "has the columns body" in (folder.path / "logs/rank-00000.err").read_text()


def test_language_modelling_collation_supervises_every_token(jobs: Jobs) -> None:
    for entry in sequences(jobs.run("rows", collator="language-modeling", epochs=1), 1):
        labels = np.array(entry["labels"])
        assert (labels[np.array(entry["attention_mask"]) == 1] != -100).all()


def test_the_record_names_the_environment_and_what_stood_in(jobs: Jobs) -> None:
    record = json.loads(
        (jobs.run("rows", batch_size=4).path / "records/rank-00000/environment.json").read_text()
    )
    assert record["framework"]["version"] == "5.24.0"
    assert record["torch"]["version"].startswith("2.")
    assert "without weights stood in for the model" in record["stand_ins"][0]


def test_the_export_is_saved_by_the_framework_and_holds_the_release(jobs: Jobs) -> None:
    folder = jobs.run("export")
    names = {path.name for path in folder.output.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"} < names
    saved = load_header(folder.output / "model.safetensors")
    index = json.loads((jobs.model / "model.safetensors.index.json").read_text())["weight_map"]
    expected = {name.removesuffix("_blocks") for name in index if not name.endswith("_scales")}
    assert set(saved) == expected
    assert {entry["dtype"] for entry in saved.values()} == {"BF16"}


def load_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
