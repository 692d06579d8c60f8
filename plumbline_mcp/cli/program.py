"""The program ``plumbline``: its verbs, and the one place where errors become text and exit codes."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from plumbline_mcp.cli import (
    check,
    doctor,
    export_evidence,
    faults,
    finding,
    init,
    job,
    key,
    listing,
    onboard,
    plan,
    policy,
    proposed,
    prune,
    queue,
    reevaluate,
    report,
    run,
    serve,
    show,
    task,
    token,
    verify,
    verify_evidence,
    version,
)
from plumbline_mcp.cli.options import EXIT_CODES, FLAG, ExitCode
from plumbline_mcp.cli.stopping import Stopping, interruptible

_TRACEBACK = "PLUMBLINE_TRACEBACK"
_STOPPING = Stopping()

_ORDER = (
    check,
    run,
    job,
    task,
    plan,
    finding,
    verify,
    queue,
    key,
    policy,
    token,
    proposed,
    listing,
    show,
    report,
    init,
    onboard,
    faults,
    serve,
    doctor,
    reevaluate,
    prune,
    export_evidence,
    verify_evidence,
    version,
)


class Verbs(TyperGroup):
    """The verbs in the order they are registered in, groups and commands alike."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of use."""
        return [name for name in _NAMES if name in self.commands]


_NAMES = [verb.NAME for verb in _ORDER]

app = typer.Typer(
    name="plumbline",
    cls=Verbs,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from plumbline_mcp.version import system_version

        typer.echo(f"plumbline {system_version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar=FLAG,
            is_eager=True,
            callback=_print_version,
            help="Print the system version.",
        ),
    ] = False,
) -> None:
    """Find LLM training that is silently wrong: each part of a run is checked against a trusted reference."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)


for _verb in _ORDER:
    _verb.register(app)
_program.__doc__ = f"{_program.__doc__}\n\nExample: plumbline onboard\n\n{EXIT_CODES}"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the program and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to crash
    if given[:1] != [serve.NAME]:  # a server ends at once; what it started ends with it
        _STOPPING.install()
    with interruptible():
        code = _guarded(
            lambda: get_command(app).main(given, prog_name="plumbline", standalone_mode=False), given
        )
    sys.exit(code)


def _guarded(run: Callable[[], Any], arguments: list[str]) -> int:
    try:
        code = run() or ExitCode.PASS
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):  # at a question, typer makes the one of the other
        code = ExitCode.INTERRUPTED
    except SystemExit as stop:  # so typer leaves when the reader of our output is gone
        gone = isinstance(stop.__context__, BrokenPipeError)
        code = ExitCode.BROKEN_PIPE if gone else ExitCode.USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush is silent
        code = ExitCode.BROKEN_PIPE
    except typer.TyperException as error:
        code = _say(_usage_sentence(error, arguments), _help_of(error, arguments), ExitCode.USAGE, arguments)
    except Exception as error:  # noqa: BLE001 - the edge of the program: whatever happened becomes a sentence
        code = _explained(error, arguments)
    return int(_stopped(arguments) if code == ExitCode.INTERRUPTED else code)  # typer itself returns 130


def _stopped(arguments: list[str]) -> ExitCode:
    with contextlib.suppress(OSError):  # the terminal may be what went away
        _say("stopped; nothing half-written", "run the same command again", _STOPPING.code, arguments)
    return _STOPPING.code


def _explained(error: Exception, arguments: list[str]) -> ExitCode:
    from approvals.errors import Refused
    from checks.errors import CannotJudge, CheckError
    from plumbline_mcp.errors import PlumblineError

    if os.environ.get(_TRACEBACK):
        raise error
    if isinstance(error, CheckError | PlumblineError | Refused):
        code = ExitCode.COULD_NOT_JUDGE if isinstance(error, CannotJudge) else ExitCode.USAGE
        return _say(error.message, error.next_step, code, arguments)
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return _say(f"{named}{error.strerror or error}", "", ExitCode.USAGE, arguments)
    crash = f"crashed: {type(error).__name__}: {error}"
    again = f"run it again with {_TRACEBACK}=1 and report the trace as a bug"
    return _say(crash, again, ExitCode.USAGE, arguments)


def _usage_sentence(error: typer.TyperException, arguments: list[str]) -> str:
    said = " ".join(error.format_message().split()).rstrip(".")
    met = _value_met(error, arguments)
    got = f" (got {met!r})" if met is not None and met not in said else ""
    return said[:1].lower() + said[1:] + got


def _value_met(error: typer.TyperException, arguments: list[str]) -> str | None:
    """The value that was given to the option an error is about; typer does not always name it."""
    options = getattr(getattr(error, "param", None), "opts", ())
    for index, argument in enumerate(arguments):
        name, sign, value = argument.partition("=")
        if name in options and name.startswith("-"):
            return value if sign else next(iter(arguments[index + 1 :]), None)
    return None


def _help_of(error: typer.TyperException, arguments: list[str]) -> str:
    """The help to read; an option without its value is refused before typer knows of which verb."""
    context = getattr(error, "ctx", None)
    if context:
        return f"{context.command_path} --help"
    names: list[str] = []
    command: Any = get_command(app)
    for argument in arguments:
        command = command.get_command(None, argument) if hasattr(command, "get_command") else None
        if command is None:
            break
        names.append(argument)
    return " ".join(["plumbline", *names, "--help"])


def _say(message: str, next_step: str, code: ExitCode, arguments: list[str]) -> ExitCode:
    """Say an error on standard error, as JSON on standard output where ``--json`` was asked for."""
    from plumbline_mcp.cli.screen import console, print_json, untrusted

    if "--json" in arguments:
        print_json({"error": message, "next_step": next_step, "exit_code": int(code)})
        return code
    screen = console(stderr=True)
    screen.print(untrusted(f"plumbline: {message}"), soft_wrap=True)
    if next_step:
        screen.print(untrusted(f"  next: {next_step}", "dim"), soft_wrap=True)
    return code
