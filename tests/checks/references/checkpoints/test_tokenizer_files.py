"""Tokenizers by content and by what they encode; chat templates by text, wherever they are kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from checks.references.checkpoints.folder import Checkpoint
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.tokenizer_files import (
    chat_templates,
    compare_chat_templates,
    compare_tokenizers,
)


@pytest.fixture(scope="module")
def release() -> Checkpoint:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the quick brown fox", "the lazy dog"] * 5, trainer)
    settings = {
        "eos_token": {"content": "</s>", "lstrip": False},
        "bos_token": "<s>",
        "model_max_length": 512,
    }
    return Checkpoint(
        Path("release"),
        {},
        {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(settings).encode(),
            "chat_template.jinja": b"{{ messages }}\nline 2\nline 3\n",
        },
    )


def _with(side: Checkpoint, **documents: bytes | None) -> Checkpoint:
    changed = {name.replace("__", "."): value for name, value in documents.items()}
    merged: dict[str, Any] = {**side.documents, **changed}
    return replace(side, documents={name: value for name, value in merged.items() if value is not None})


def _problems(original: Checkpoint, export: Checkpoint) -> list[tuple[str, str | None]]:
    problems, _, _ = compare_tokenizers(original, export)
    return [(problem.code, problem.place.field) for problem in problems]


def test_the_same_tokenizer_written_otherwise_is_equal(release: Checkpoint) -> None:
    raw = json.loads(release.documents["tokenizer.json"])
    raw["model"]["merges"] = [" ".join(merge) for merge in raw["model"]["merges"]]
    raw["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    written = json.dumps(raw, indent=1).encode()
    settings = json.dumps({"eos_token": "</s>", "tokenizer_class": "Other", "model_max_length": 512}).encode()
    special = json.dumps({"bos_token": {"content": "<s>"}}).encode()
    export = _with(
        release, tokenizer__json=written, tokenizer_config__json=settings, special_tokens_map__json=special
    )
    problems, notes, _ = compare_tokenizers(release, export)
    assert problems == []
    assert any("truncation differs" in note for note in notes)


def test_a_changed_splitter_is_found_by_content_and_by_a_probe(release: Checkpoint) -> None:
    tokenizer = Tokenizer.from_str(release.documents["tokenizer.json"].decode())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.normalizer = normalizers.NFKC()
    found = _problems(release, _with(release, tokenizer__json=tokenizer.to_str().encode()))
    assert ("tokenizer-differs", "pre_tokenizer") in found
    assert ("tokenizer-differs", "normalizer") in found
    assert ("tokenizer-differs", None) in found


def test_flags_that_touch_no_id_are_no_difference(release: Checkpoint) -> None:
    raw = json.loads(release.documents["tokenizer.json"])
    flags = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    raw["pre_tokenizer"], raw["decoder"] = flags, flags
    left = _with(release, tokenizer__json=json.dumps(raw).encode())
    raw["pre_tokenizer"] = flags | {"trim_offsets": True}
    raw["decoder"] = flags | {"add_prefix_space": True, "use_regex": False}
    assert _problems(left, _with(release, tokenizer__json=json.dumps(raw).encode())) == []
    raw["pre_tokenizer"] = flags | {"use_regex": False}
    wrong = _problems(left, _with(release, tokenizer__json=json.dumps(raw).encode()))
    assert ("tokenizer-differs", "pre_tokenizer") in wrong


def test_a_lost_merge_and_an_added_token_are_found(release: Checkpoint) -> None:
    raw = json.loads(release.documents["tokenizer.json"])
    raw["model"]["merges"].pop()
    assert ("tokenizer-differs", "model") in _problems(
        release, _with(release, tokenizer__json=json.dumps(raw).encode())
    )
    tokenizer = Tokenizer.from_str(release.documents["tokenizer.json"].decode())
    tokenizer.add_special_tokens(["<pad>"])
    more = _with(release, tokenizer__json=tokenizer.to_str().encode())
    assert _problems(release, more) == [("tokenizer-differs", "added_tokens")]


def test_special_tokens_and_settings_are_compared_by_meaning(release: Checkpoint) -> None:
    changed = {"eos_token": "<s>", "bos_token": "<s>", "pad_token": "</s>", "model_max_length": 99}
    export = _with(release, tokenizer_config__json=json.dumps(changed).encode())
    assert {field for _, field in _problems(release, export)} == {
        "eos_token",
        "pad_token",
        "model_max_length",
    }


def test_a_missing_or_broken_vocabulary(release: Checkpoint) -> None:
    assert _problems(release, _with(release, tokenizer__json=None))[0][0] == "file-missing"
    with pytest.raises(Unreadable, match="no JSON"):
        compare_tokenizers(release, _with(release, tokenizer__json=b"{"))
    with pytest.raises(Unreadable, match="cannot be loaded"):
        compare_tokenizers(release, _with(release, tokenizer__json=b'{"model": {}}'))
    sentencepiece = Checkpoint(Path("x"), {}, {"tokenizer.model": b"abc"})
    other = replace(sentencepiece, documents={"tokenizer.model": b"abd"})
    assert _problems(sentencepiece, other) == [("tokenizer-differs", None)]


def test_a_template_is_equal_wherever_it_is_kept(release: Checkpoint) -> None:
    text = "{{ messages }}\nline 2\nline 3"
    inside = json.dumps({"chat_template": text}).encode()
    named = json.dumps({"chat_template": [{"name": "default", "template": text}]}).encode()
    for documents in (
        {"tokenizer_config__json": inside},
        {"tokenizer_config__json": named},
        {"chat_template__json": inside},
    ):
        export = _with(release, chat_template__jinja=None, **documents)
        assert compare_chat_templates(release, export) == ([], [], 1)


def test_lost_changed_and_added_templates(release: Checkpoint) -> None:
    lost, _, count = compare_chat_templates(release, _with(release, chat_template__jinja=None))
    assert ([problem.code for problem in lost], count) == (["template-missing"], 1)
    changed = _with(release, chat_template__jinja=b"{{ messages }}\nline two\nline 3")
    problems, _, _ = compare_chat_templates(release, changed)
    assert problems[0].code == "template-differs"
    assert "line 2" in problems[0].message
    none = _with(release, chat_template__jinja=None)
    assert compare_chat_templates(none, release)[0][0].code == "template-differs"
    more = replace(release, documents={**release.documents, "additional_chat_templates/tools.jinja": b"x"})
    assert [p.place.field for p in compare_chat_templates(more, release)[0]] == ["tools"]
    assert "tools" in compare_chat_templates(release, more)[1][0]
    with pytest.raises(Unreadable, match="UTF-8"):
        chat_templates(_with(release, chat_template__jinja=b"\xff\xfe"))


def test_two_texts_of_one_template_contradict_each_other(release: Checkpoint) -> None:
    """An older writer's template left beside a newer file: each loader renders another one."""
    text = release.documents["chat_template.jinja"].decode().removesuffix("\n")
    settings = json.loads(release.documents["tokenizer_config.json"])

    def beside(template: Any, side: Checkpoint = release) -> Checkpoint:
        return _with(
            side, tokenizer_config__json=json.dumps({**settings, "chat_template": template}).encode()
        )

    for template in (text, [{"name": "default", "template": text}]):
        assert compare_chat_templates(release, beside(template)) == ([], [], 1)
    old = [{"name": "default", "template": "old"}]
    for export, file in (
        (beside("old"), "tokenizer_config.json"),
        (beside(old), "tokenizer_config.json"),
        (_with(release, chat_template__json=b'{"chat_template": "old"}'), "chat_template.json"),
    ):
        problems, _, _ = compare_chat_templates(release, export)
        assert [(p.code, p.place.file, p.found) for p in problems] == [("template-differs", file, "'old'")]
        assert problems[0].next_step
    assert compare_chat_templates(beside("old"), beside("old"))[0] == []  # the release says both itself
    changed = beside(text, _with(release, chat_template__jinja=b"new"))
    assert [p.place.file for p in compare_chat_templates(release, changed)[0]] == ["chat_template.jinja"]


def test_an_added_template_for_tools_changes_what_is_rendered(release: Checkpoint) -> None:
    def adding(text: bytes) -> Checkpoint:
        documents = {**release.documents, "additional_chat_templates/tool_use.jinja": text}
        return replace(release, documents=documents)

    problems, _, _ = compare_chat_templates(release, adding(b"other"))
    assert [(p.code, p.place.field) for p in problems] == [("template-differs", "tool_use")]
    assert problems[0].next_step
    assert compare_chat_templates(release, adding(release.documents["chat_template.jinja"]))[0] == []
    assert compare_chat_templates(adding(b"other"), adding(b"other"))[0] == []
