"""``plumbline init``: write a target from flags, or from questions on a terminal."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline_mcp.cli.options import FLAG, ExitCode, Json, paragraphs

if TYPE_CHECKING:
    from plumbline_mcp.scan.target import Target
    from plumbline_mcp.scan.target_writing import Given

NAME = "init"

_ENVIRONMENTS = ("python", "requirements", "image", "pack")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        name=NAME, help=paragraphs(init.__doc__), short_help="Write the target.toml that onboard scans."
    )(init)


_File = Annotated[Path, typer.Argument(metavar="TARGET.toml", help="The file to write.")]
_Framework = Annotated[
    str | None, typer.Option(metavar="NAME", help="Built-in connection pack, or the path of a pack folder.")
]
_Model = Annotated[Path | None, typer.Option(metavar="PATH", help="Folder of the official release.")]
_Workload = Annotated[Path | None, typer.Option(metavar="PATH", help="Conversations, JSONL or JSON.")]
_Template = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Chat template, where it is not the release's own.")
]
_Commit = Annotated[
    str | None, typer.Option(metavar="VERSION", help="The framework's commit or version under test.")
]
_Python = Annotated[Path | None, typer.Option(metavar="PATH", help="Environment: the framework's Python.")]
_Requirements = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Environment: pinned, hashed requirements; built once.")
]
_NoHashes = Annotated[
    bool, typer.Option("--no-hashes", metavar=FLAG, help="The requirements carry no hashes.")
]
_Image = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Environment: NAME@sha256:DIGEST, or a .sif or .sqsh file."),
]
_ImageSha256 = Annotated[
    str, typer.Option("--image-sha256", metavar="DIGEST", help="Digest of the image's file.")
]
_Runtime = Annotated[
    str | None, typer.Option(metavar="NAME", help="docker, podman, apptainer or pyxis; the one that answers.")
]
_Pack = Annotated[
    bool, typer.Option("--pack-environment", metavar=FLAG, help="Environment: the pack's own pins.")
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the recipe, JSON or text; repeatable."),
]
_Force = Annotated[bool, typer.Option("--force", metavar=FLAG, help="Replace a file that is there.")]


def init(
    target: _File = Path("target.toml"),
    framework: _Framework = None,
    model: _Model = None,
    workload: _Workload = None,
    template: _Template = None,
    commit: _Commit = None,
    python: _Python = None,
    requirements: _Requirements = None,
    no_hashes: _NoHashes = False,
    image: _Image = None,
    image_sha256: _ImageSha256 = "",
    runtime: _Runtime = None,
    pack_environment: _Pack = False,
    set_: _Set = None,
    force: _Force = False,
    json_output: Json = False,
) -> int:
    """Write what you want scanned into a file: framework, release, workload, environment, settings.

    What no flag says is asked on a terminal. Every value is checked before the file is written, and the
    settings that the framework knows are listed in it as comments. Then: plumbline onboard TARGET.toml

    Example: plumbline init --framework trl --model models/m --workload train.jsonl --pack-environment
    """
    from plumbline_mcp.cli.inputs import settings_of
    from plumbline_mcp.cli.screen import print_json
    from plumbline_mcp.errors import UsageError
    from plumbline_mcp.scan.target_writing import write_target

    if target.exists() and not force:  # before any question is asked
        raise UsageError(f"{target} is there already", "name another file, or give --force to replace it")
    named = {"python": python, "requirements": requirements, "image": image, "pack": pack_environment or None}
    answers: dict[str, Any] = {"framework": framework, "model": model, "workload": workload}
    answers |= {name: value for name, value in named.items() if value is not None}
    answers |= {"image_sha256": image_sha256} if image_sha256 else {}
    given = _given(_asked(answers)).model_copy(
        update={
            "template": template,
            "commit": commit,
            "hashes": not no_hashes,
            "runtime": runtime,
            "recipe": settings_of(set_ or []),
        }
    )
    written = write_target(target, given, force=force)
    if json_output:
        print_json({"target": str(written.path), "steps": [step.name for step in written.scan_steps()]})
    else:
        _print(written)
    return ExitCode.PASS


def _asked(answers: dict[str, Any]) -> dict[str, Any]:
    """The answers, completed by questions on a terminal. Raises `UsageError` where nobody can be asked."""
    from plumbline_mcp.errors import UsageError

    missing = [name for name in ("framework", "model", "workload") if answers[name] is None]
    environments = [name for name in _ENVIRONMENTS if name in answers]
    if len(environments) > 1:
        flags = " and ".join(_flag(name) for name in environments)
        raise UsageError(f"{flags} name two environments", "give one of them")
    if not environments:
        missing.append("environment")
    if missing and not sys.stdin.isatty():
        raise UsageError(
            f"nothing says which {missing[0]}",
            f"give {_flag(missing[0])}, or run it on a terminal to be asked",
        )
    if missing:
        _check_given(answers)
    return answers | {key: value for name in missing for key, value in _ask(name).items()}


def _check_given(answers: dict[str, Any]) -> None:
    """What a flag says is checked before the first question, as an answer would be."""
    from plumbline_mcp.scan.target_writing import check_answer

    for name, value in answers.items():
        if value is not None:
            check_answer(name, str(value), str(answers.get("image") or ""))


def _flag(name: str) -> str:
    special = {"pack": "--pack-environment", "environment": "--python, --requirements, --image or so"}
    return special.get(name, f"--{name}")


def _answer(name: str, question: str, default: str | None = None, image: str = "") -> str:
    """Ask until the answer fits: a mistake is said at once, and what was answered before is kept."""

    def checked(text: str) -> str:
        from checks.errors import BadInput
        from plumbline_mcp.errors import UsageError
        from plumbline_mcp.scan.target_writing import check_answer

        if name == "environment" and text not in _ENVIRONMENTS:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(_ENVIRONMENTS)}")
        try:
            check_answer(name, text, image)
        except (BadInput, UsageError) as error:
            raise typer.BadParameter(f"{error.message}; {error.next_step}") from error
        return text

    return str(typer.prompt(question, default=default, value_proc=checked, err=True))


def _ask(name: str) -> dict[str, str]:
    from checks.references.packs import built_in
    from plumbline_mcp.scan.target_writing import is_file_image

    if name == "framework":
        return {name: _answer(name, f"Framework ({', '.join(built_in())}, or a pack's folder)")}
    if name != "environment":
        what = {"model": "Folder of the official release", "workload": "File of the conversations"}
        return {name: _answer(name, what[name])}
    kind = _answer(name, f"Environment ({', '.join(_ENVIRONMENTS)})", default="python")
    if kind == "pack":
        return {"pack": "yes"}
    texts = {
        "python": "The framework's Python, e.g. venv/bin/python",
        "requirements": "File of pinned requirements",
        "image": "Image, NAME@sha256:DIGEST or a file",
    }
    answer = {kind: _answer(kind, texts[kind])}
    if kind == "image" and is_file_image(answer[kind]):
        question = f"SHA-256 of the file (sha256sum {answer[kind]})"
        answer["image_sha256"] = _answer("image_sha256", question, image=answer[kind])
    return answer


def _given(answers: dict[str, Any]) -> "Given":
    from plumbline_mcp.scan.target_writing import Given

    return Given.model_validate({name: value for name, value in answers.items() if name != "pack"})


def _print(written: "Target") -> None:
    from plumbline_mcp.cli.screen import console, labelled

    out = console()
    out.print(labelled("written: ", written.path), soft_wrap=True)
    out.print(labelled("steps:   ", ", ".join(step.name for step in written.scan_steps())))
    out.print(labelled("next:    ", f"plumbline onboard {written.path}"), soft_wrap=True)
