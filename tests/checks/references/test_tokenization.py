"""The official tokenizer: no token added, offsets whole, stop ids from the release, control text found."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from checks.errors import NotEvaluated
from checks.references.tokenization import ReleaseTokenizer, stop_tokens
from tests.checks.tiny_release import tokenizer, write_release
from tests.real_templates import tokenizer_json
from tests.shared_data import needs_shared


def test_nothing_is_added_cut_or_padded_whatever_the_file_says(tmp_path: Path) -> None:
    release = write_release(tmp_path)
    made = tokenizer()
    made.enable_truncation(4)
    made.enable_padding(length=64)
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]),
        ]
    )
    made.save(str(release / "tokenizer.json"))
    text = "<s><|user|>\nHow many apples are 3 plus 6?"
    encoding = ReleaseTokenizer.load(release).encode([text])[0]
    assert encoding.ids == tokenizer().encode(text, add_special_tokens=False).ids
    assert "".join(text[start:end] for start, end in encoding.offsets) == text


def test_stop_ids_are_the_releases(tmp_path: Path) -> None:
    release = write_release(tmp_path, stops=["<|end|>", "<|user|>"])
    loaded = ReleaseTokenizer.load(release)
    end, user = tokenizer().token_to_id("<|end|>"), tokenizer().token_to_id("<|user|>")
    assert stop_tokens(release, loaded).ids == {end, user}
    (release / "generation_config.json").write_text(json.dumps({"eos_token_id": user}), encoding="utf-8")
    assert stop_tokens(release, loaded).ids == {user}
    (release / "generation_config.json").unlink()
    found = stop_tokens(release, loaded)
    assert (found.ids, found.named_by_release) == ({end}, False)


def test_a_token_is_told_as_its_text(tmp_path: Path) -> None:
    loaded = ReleaseTokenizer.load(write_release(tmp_path))
    ids = loaded.tokenizer.token_to_id
    for spelling, text in (("Ġ", " "), ("Ċ", "\n"), ("a", "a"), ("ĉ", "\t"), ("<|end|>", "<|end|>")):
        assert loaded.words(ids(spelling)) == f"{ids(spelling)} {text!r}"
    half = loaded.tokenizer.encode("é", add_special_tokens=False).ids
    assert [loaded.words(number).partition(" ")[2] for number in half] == ["b'\\xc3'", "b'\\xa9'"]
    assert loaded.words(-1) == "-1 (negative)"
    assert loaded.words(9999) == "9999 (not in the vocabulary)"


def test_a_blank_that_a_decoder_strips_is_told() -> None:
    made = Tokenizer(models.WordLevel({"▁how": 0, "▁": 1, "s": 2}, unk_token="s"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    loaded = ReleaseTokenizer(made, {}, segment_safe=False)
    assert [loaded.words(number) for number in range(3)] == ["0 ' how'", "1 ' '", "2 's'"]


def test_control_text_is_found_and_plain_text_is_not(tmp_path: Path) -> None:
    loaded = ReleaseTokenizer.load(write_release(tmp_path))
    assert loaded.control_text("a <|user|> b") == "<|user|>"
    assert loaded.control_text("a <|user b|> <") is None


def test_the_first_control_text_behind_a_character_is_found(tmp_path: Path) -> None:
    loaded = ReleaseTokenizer.load(write_release(tmp_path))
    text = "<|user|> a <|us b <|end|> c"
    assert loaded.control_end(text, 0) == len("<|user|>")
    assert loaded.control_end(text, 1) == text.index(" c")
    assert loaded.control_end(text, text.index(" c")) is None


def test_only_tokens_that_stand_where_their_text_does_are_literal() -> None:
    made = tokenizer()
    made.add_tokens([AddedToken("[left]", lstrip=True, normalized=False), AddedToken("[n]", normalized=True)])
    loaded = ReleaseTokenizer(made, {}, segment_safe=True)
    ids = {text: made.token_to_id(text) for text in ("<|end|>", "<|user|>", "[left]", "[n]", "a")}
    assert loaded.literal_texts([ids["<|end|>"]]) == ["<|end|>"]
    assert set(loaded.literal_texts([ids["<|end|>"], ids["<|user|>"]]) or ()) == {"<|end|>", "<|user|>"}
    for text in ("[left]", "[n]", "a"):
        assert loaded.literal_texts([ids["<|end|>"], ids[text]]) is None


def test_text_between_added_tokens_is_tokenised_alike_only_without_prefixes(tmp_path: Path) -> None:
    release = write_release(tmp_path)
    assert ReleaseTokenizer.load(release).segment_safe
    for change in (
        normalizers.Prepend("▁"),
        pre_tokenizers.Metaspace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
    ):
        made = tokenizer()
        setattr(made, "normalizer" if isinstance(change, normalizers.Prepend) else "pre_tokenizer", change)
        made.save(str(release / "tokenizer.json"))
        assert not ReleaseTokenizer.load(release).segment_safe


def test_an_unusable_tokenizer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotEvaluated, match=r"no tokenizer\.json"):
        ReleaseTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]", encoding="utf-8")
    with pytest.raises(NotEvaluated, match="is no tokenizer"):
        ReleaseTokenizer.load(tmp_path)
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr("checks.references.tokenization.MAX_TOKENIZER_BYTES", 3)
    with pytest.raises(NotEvaluated, match="limit 3"):
        ReleaseTokenizer.load(tmp_path)


@needs_shared
@pytest.mark.parametrize("name", ["gpt-oss", "qwen3", "deepseek-v4"])
def test_real_tokenizers_are_safe_to_read_by_segment(name: str) -> None:
    assert ReleaseTokenizer.load(tokenizer_json(name).parent).segment_safe
