"""An interpreter's answer re-read: what is missing, old, edited or added fails; byte code stays open."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute import recompute

Probe = dict[str, Any]
LOCATION = "/environment/site-packages"


def distribution(name: str, version: str, *requires: str) -> Probe:
    return {"name": name, "version": version, "requires": list(requires), "location": LOCATION,
            "versions_here": [version]}  # fmt: skip


def probe() -> Probe:
    """A small whole environment, written down by hand."""
    files = [
        {"name": "transformers/__init__.py", "algorithm": "sha256", "recorded": "abc", "measured": "abc"}
    ]
    return {
        "format": 1,
        "python": {"executable": "/environment/bin/python", "version": "3.11.7", "prefix": "/environment"},
        "markers": {"python_version": "3.11", "sys_platform": "linux", "platform_system": "Linux"},
        "distributions": [
            distribution(
                "transformers", "5.24.0", "numpy>=1.17", 'jinja2>=3.1; extra == "chat-template"',
                'torch>=2.2; extra == "torch"', 'pywin32; sys_platform == "win32"',
            ),
            distribution("numpy", "2.1.0"),
            distribution("Jinja2", "3.1.6", "MarkupSafe>=2.0"),
            distribution("markupsafe", "3.0.2"),
            distribution("torch", "2.13.0"),
        ],
        "framework": [{"name": "transformers", "has_record": True, "files": files}],
        "module": {
            "name": "transformers", "origin": f"{LOCATION}/transformers/__init__.py", "version": "5.24.0",
        },
        "startup": [],
    }  # fmt: skip


def asked(tmp_path: Path, value: Probe, **inputs: Any) -> Submission:
    (tmp_path / "record-1").mkdir(exist_ok=True)
    (tmp_path / "record-1" / "probe.json").write_text(json.dumps(value))
    given = {"framework": "transformers", **inputs}
    return recompute(tmp_path, Question(check="image", records=("record-1",), inputs=given))


def test_a_whole_environment_leaves_only_byte_code_open(tmp_path: Path) -> None:
    answer = asked(tmp_path, probe(), commit="5.24.0")
    assert answer.outcome == "inconclusive"
    assert [problem.code for problem in answer.problems] == ["bytecode-unread"]
    assert answer.values == {
        "requirements: declared by the framework": 3,
        "requirements: declared by what it requires": 1,
    }


def _old(value: Probe) -> None:
    value["distributions"][1]["version"] = "1.16.9"


def _gone(value: Probe) -> None:
    del value["distributions"][3]


def _edited(value: Probe) -> None:
    value["framework"][0]["files"][0]["measured"] = "abd"


def _deleted(value: Probe) -> None:
    value["framework"][0]["files"][0]["measured"] = None


def _added(value: Probe) -> None:
    value["framework"][0]["unrecorded"] = ["transformers/extra.py"]


def _shadowed(value: Probe) -> None:
    value["module"]["origin"] = "/somewhere/transformers/__init__.py"


def _other_version(value: Probe) -> None:
    value["distributions"][0]["version"] = "5.23.0"


FAULTS: dict[str, tuple[Callable[[Probe], None], str, dict[str, str]]] = {
    "old": (_old, "requirement-unsatisfied", {"package": "numpy"}),
    "gone": (_gone, "requirement-missing", {"package": "MarkupSafe"}),
    "edited": (_edited, "file-edited", {"file": "transformers/__init__.py"}),
    "deleted": (_deleted, "file-missing", {"file": "transformers/__init__.py"}),
    "added": (_added, "file-unexpected", {"file": "transformers/extra.py"}),
    "shadowed": (
        _shadowed, "module-shadowed",
        {"file": "/somewhere/transformers/__init__.py", "package": "transformers"},
    ),
    "version": (_other_version, "version-differs", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_not_as_declared_fails_at_its_place(tmp_path: Path, name: str) -> None:
    change, code, place = FAULTS[name]
    value = probe()
    change(value)
    answer = asked(tmp_path, value, commit="5.24.0")
    assert (answer.outcome, answer.problems[0].code, answer.place) == ("fail", code, place)


def test_a_requirement_of_another_platform_does_not_apply(tmp_path: Path) -> None:
    value = probe()
    value["markers"]["sys_platform"] = "win32"
    assert asked(tmp_path, value).place == {"package": "pywin32"}


def test_an_answer_of_another_kind_is_inconclusive(tmp_path: Path) -> None:
    for value in ({}, {**probe(), "format": 2}, {**probe(), "distributions": [{"name": 7}]}):
        assert asked(tmp_path, value).outcome == "inconclusive"
