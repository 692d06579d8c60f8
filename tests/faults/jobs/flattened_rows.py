"""Job: pack conversations through transformers' DataCollatorWithFlattening and dump the rows.

Usage: flattened_rows.py RELEASE WORKLOAD OUT restarting|running. The collator's position ids restart with
each document; `running` numbers them through, as a pipeline does that packs and knows no documents.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer, DataCollatorWithFlattening

DOCUMENTS = 4


def encoded(release: str, workload: str) -> list[dict]:
    tokenizer = AutoTokenizer.from_pretrained(release)
    rows = []
    with Path(workload).open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            row = json.loads(line)
            made = tokenizer.apply_chat_template(
                row["messages"],
                tools=row.get("tools"),
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
            ids, mask = made["input_ids"], made["assistant_masks"]
            labels = [token if on else -100 for token, on in zip(ids, mask, strict=True)]
            rows.append({"row_id": number, "input_ids": ids, "labels": labels})
    return rows


def main(release: str, workload: str, out: str, positions: str) -> None:
    rows = encoded(release, workload)
    collate = DataCollatorWithFlattening()
    with Path(out).open("w", encoding="utf-8") as file:
        for start in range(0, len(rows), DOCUMENTS):
            chosen = rows[start : start + DOCUMENTS]
            batch = collate([{"input_ids": row["input_ids"], "labels": row["labels"]} for row in chosen])
            ids = batch["input_ids"][0].tolist()
            numbered = batch["position_ids"][0].tolist() if positions == "restarting" else range(len(ids))
            packed = {
                "input_ids": ids,
                "labels": batch["labels"][0].tolist(),
                "position_ids": list(numbered),
                "seq_lens": [len(row["input_ids"]) for row in chosen],
                "row_ids": [row["row_id"] for row in chosen],
            }
            file.write(json.dumps(packed) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
