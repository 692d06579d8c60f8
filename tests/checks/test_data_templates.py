"""Which of a release's templates renders which row, in the data check."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from checks.verdict import Outcome
from tests.checks import tiny_release
from tests.checks.judged_rows import judged, part
from tests.checks.tiny_release import WORKLOAD, write_release

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "description": "d"}}]
BEGIN = "{{ bos_token }}"
WITH_TOOLS = tiny_release.TEMPLATE.replace(BEGIN, BEGIN + "<|system|>\nTools: {{ tools | length }}<|end|>\n")


def test_rows_with_tools_alone_take_the_template_for_tools(tmp_path: Path) -> None:
    release = write_release(tmp_path / "release")
    named = [
        {"name": "default", "template": tiny_release.TEMPLATE},
        {"name": "tool_use", "template": WITH_TOOLS},
    ]
    path = release / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"chat_template": named}), "utf-8")
    workload = tmp_path / "tools.jsonl"
    lines = [{"messages": chat, "tools": TOOLS if n == 3 else None} for n, chat in enumerate(WORKLOAD)]
    workload.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    dump = tiny_release.rows()
    begin = Tokenizer.from_file(str(release / "tokenizer.json")).encode("<|system|>\nTools: 1<|end|>\n").ids
    dump[3]["input_ids"][1:1] = begin
    dump[3]["labels"][1:1] = [-100] * len(begin)
    verdict = judged(tmp_path, release, dump, workload=workload)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert verdict.settings["template"] == (
        "tokenizer_config.json (default), tokenizer_config.json (tool_use)"
    )
    dump[3] = tiny_release.rows()[3]
    found = part(judged(tmp_path, release, dump, workload=workload), "ids/content").problems
    assert [(problem.code, problem.place.row) for problem in found] == [("content-differs", 3)]
