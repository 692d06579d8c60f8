"""Job: pack conversations with the installed trl's own packing and dump the rows.

Usage: trl_packed_rows.py RELEASE WORKLOAD OUT LENGTH. trl 0.24.0 drops what does not fit LENGTH.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer
from trl import pack_dataset


def encoded(release: str, workload: str) -> dict[str, list]:
    tokenizer = AutoTokenizer.from_pretrained(release)
    columns: dict[str, list] = {"input_ids": [], "labels": []}
    with Path(workload).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            made = tokenizer.apply_chat_template(
                row["messages"],
                tools=row.get("tools"),
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            ids, mask = made["input_ids"], made["assistant_masks"]
            columns["input_ids"].append(ids)
            columns["labels"].append([token if on else -100 for token, on in zip(ids, mask, strict=True)])
    return columns


def main(release: str, workload: str, out: str, length: str) -> None:
    data = Dataset.from_dict(encoded(release, workload))
    packed = pack_dataset(data, int(length), strategy="bfd")
    with Path(out).open("w", encoding="utf-8") as file:
        for row in packed:
            lengths = row["seq_lengths"]
            positions = [position for size in lengths for position in range(size)]
            kept = {name: row[name] for name in ("input_ids", "labels")}
            file.write(json.dumps({**kept, "seq_lens": lengths, "position_ids": positions}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
