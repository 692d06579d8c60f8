"""``python -I -m plumbline_mcp.findings.recompute FOLDER QUESTION.json`` prints the Submission as JSON."""

import sys
from pathlib import Path

from pydantic import ValidationError

from plumbline_mcp.findings.questions import MAX_QUESTION_BYTES, Question
from plumbline_mcp.findings.recompute import recompute
from plumbline_mcp.findings.recompute.reading import Cannot, read_json

_USAGE = "usage: python -I -m plumbline_mcp.findings.recompute FOLDER QUESTION.json"


def main(arguments: list[str]) -> int:
    """Print the answer; 0 where there is one, 3 where the question is none."""
    if len(arguments) != 2:
        print(_USAGE, file=sys.stderr)  # noqa: T201 - the program's own output
        return 3
    folder, path = Path(arguments[0]), Path(arguments[1])
    try:
        question = Question.model_validate(read_json(path, MAX_QUESTION_BYTES))
    except (Cannot, ValidationError) as error:
        print(f"{path}: {str(error)[:500]}\n{_USAGE}", file=sys.stderr)  # noqa: T201
        return 3
    print(recompute(folder, question).model_dump_json())  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
