"""A verifier's whole session over real HTTP, in both eras: what it can do, and every answer searched."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from plumbline_mcp.findings.states import State
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.server.tokens import Tokens
from tests.approvals.reviewers import make_reviewer
from tests.plumbline_mcp.findings import faulty_export, reviewing
from tests.plumbline_mcp.findings.faulty_export import TENSOR, Faulty
from tests.plumbline_mcp.findings.test_copying import secrets_of
from tests.plumbline_mcp.server.roles import Site, serving
from tests.plumbline_mcp.server.test_tools import ERAS

pytestmark = pytest.mark.anyio


VERIFIER_TOOLS = {"verification_take", "verification_records", "verification_submit"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Served:
    faulty: Faulty
    url: str
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def served(roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A workspace of its own, so that the oldest open finding is the one under test."""
    folder = tmp_path_factory.mktemp("session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLUMBLINE_TRUST", str(roots))
        faulty = faulty_export.make(folder)
        tokens = {
            name: minted(faulty, role, name)
            for name, role in (("second", "verifier"), ("third", "verifier"), ("worker", "agent"))
        }
        keys = folder / "keys"
        keys.mkdir()
        nobody = make_reviewer("nobody", keys)
        with serving(Site(faulty.home, roots, nobody, nobody), folder) as said:
            yield Served(faulty, said["url"], tokens)


def minted(faulty: Faulty, role: str, name: str) -> str:
    tokens = Tokens(faulty.workspace)
    made = tokens.ask(role, name, 9, "operator")
    reviewing.decided(
        faulty.workspace, faulty.workspace.approvals.ticket(made.listed.ticket), "approve", "yes"
    )
    tokens.activate(made.listed.ticket)
    return made.token


class Heard:
    """Everything that a client was told, as text."""

    def __init__(self, connected: Client) -> None:
        self.client = connected
        self.texts: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = await self.client.call_tool(tool, arguments)
        self.note(answer.model_dump_json(), *(one for one in arguments.values() if isinstance(one, str)))
        if answer.is_error:
            return {"error": answer.content[0].text}
        assert answer.structured_content is not None
        return dict(answer.structured_content)

    def note(self, text: str, *asked: str) -> None:
        """Keep an answer, without the words that the verifier itself had asked with."""
        for word in asked:
            text = text.replace(json.dumps(word)[1:-1], "<asked>") if word else text
        self.texts.append(text)

    async def refused(self, what: Any, *asked: str) -> None:
        with pytest.raises(MCPError) as error:
            await what
        self.note(f"{error.value} {error.value.error.data}", *asked)


@asynccontextmanager
async def session(served: Served, name: str, mode: str) -> AsyncIterator[Heard]:
    web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {served.tokens[name]}"}, timeout=120)
    async with web, Client(streamable_http_client(served.url, http_client=web), mode=mode) as connected:
        yield Heard(connected)


def leaks(secrets: dict[str, str], texts: list[str]) -> list[str]:
    found = []
    for what, word in secrets.items():
        spelled = {word, json.dumps(word)[1:-1], json.dumps(json.dumps(word)[1:-1])[1:-1]}
        found += [f"{what} {word!r} in {text[:200]}" for text in texts if any(one in text for one in spelled)]
    return found


@pytest.mark.parametrize("mode", ERAS)
async def test_no_answer_of_a_session_tells_the_claim(served: Served, mode: str) -> None:
    """Tools, their errors, resources, prompts, lists: all is heard, then searched."""
    faulty = served.faulty
    stored = faulty_export.found(faulty)
    finding = stored.finding.id
    async with session(served, "second", mode) as heard:
        connected = heard.client
        tools = await connected.list_tools()
        names = {tool.name for tool in tools.tools}
        assert {name for name in names if name.startswith("verification_")} == VERIFIER_TOOLS
        assert names <= VERIFIER_TOOLS | {"check_list", "version_show"}
        for name in names - VERIFIER_TOOLS:
            await heard.call(name)
        prompts = await connected.list_prompts()
        assert [one.name for one in prompts.prompts] == ["rebuild_finding"]
        prompt = await connected.get_prompt("rebuild_finding")
        heard.texts += [tools.model_dump_json(), prompts.model_dump_json(), prompt.model_dump_json()]
        heard.texts.append((await connected.list_resource_templates()).model_dump_json())
        heard.texts.append((await connected.list_resources()).model_dump_json())
        question = await heard.call("verification_take")
        verification = question["verification"]
        assert (await heard.call("verification_take"))["verification"] == verification
        await read_all(heard, verification)
        await try_ways_out(heard, verification, faulty, finding)
        wrong = await heard.call(
            "verification_submit", verification=verification, outcome="fail", values={"x": "y"}
        )
        assert "error" in wrong
        told = await heard.call(
            "verification_submit", verification=verification, outcome="inconclusive", reason="looked"
        )
        assert told["received"] is True
        assert "error" in await heard.call("verification_submit", verification=verification, outcome="pass")
        assert "error" in await heard.call("verification_records", verification=verification)
        assert "no question is open for you" in (await heard.call("verification_take"))["error"]
    secrets = secrets_of(faulty, stored) | {"trust roots": "/roots/allowed"}
    assert leaks(secrets, heard.texts) == []
    assert len("".join(heard.texts)) > 20_000
    Findings(faulty.workspace).step(finding, State.DISPUTED, "somebody")


async def read_all(heard: Heard, verification: str) -> None:
    """Every file of the copy as text, some as bytes, tensors and values."""
    files = (await heard.call("verification_records", verification=verification))["untrusted_files"]
    assert len(files) > 20
    for name, size in files.items():
        if name.endswith((".json", ".jsonl", ".toml", ".py", ".jinja", ".out", ".err")):
            for first in range(0, size, 16_000):
                page = await heard.call(
                    "verification_records",
                    verification=verification,
                    kind="text",
                    path=name,
                    first=first,
                    count=16_000,
                )
                assert "error" not in page, page
    shards = [name for name in files if name.endswith(".safetensors")]
    raw = await heard.call(
        "verification_records", verification=verification, kind="bytes", path=shards[0], count=16
    )
    assert raw["base64"]
    output = await heard.call(
        "verification_records", verification=verification, kind="tensors", path="record-1/output"
    )
    assert output["total"] > 10, output
    values = await heard.call(
        "verification_records",
        verification=verification,
        kind="tensors",
        path="record-1/output",
        tensor=TENSOR,
        count=4,
    )
    assert len(values["values"]) == 4, values


async def try_ways_out(heard: Heard, verification: str, faulty: Faulty, finding: str) -> None:
    """Paths that leave the copy, other tools, other names, resources: each is refused."""
    for path in (
        "../plumbline.db",
        "/etc/passwd",
        str(faulty.home / "plumbline.db"),
        "record-1/../../plumbline.db",
        "",
        ".",
        "record-1/nothing.json",
        "files",
    ):
        for kind in ("text", "bytes", "tensors", "rows"):
            answer = await heard.call("verification_records", verification=verification, kind=kind, path=path)
            assert "error" in answer or (path == "files" and kind == "tensors"), (path, kind, answer)
    for other in ("verification-9999", "verification-0001'", finding, faulty.run_id):
        if other != verification:
            answer = await heard.call("verification_records", verification=other)
            assert "there is no question" in answer["error"]
    for tool, arguments in (
        ("finding_show", {"finding_id": "finding-0001"}),
        ("finding_list", {}),
        ("finding_recompute", {"finding_id": "finding-0001"}),
        ("finding_propose", {}),
        ("verdict_list", {}),
        ("run_list", {}),
        ("scan_status", {}),
    ):
        assert "is for the role" in (await heard.call(tool, **arguments))["error"]
    for uri in ("plumbline://verdicts/export-0002", "plumbline://runs/record-1/files/job.json"):
        await heard.refused(heard.client.read_resource(uri), uri)
    await heard.refused(heard.client.get_prompt("day0_onboarding", {"model": "m"}))


async def test_a_right_answer_over_http_rebuilds_where_nothing_can_be_recomputed_else_not(
    served: Served,
) -> None:
    from plumbline_mcp.findings.recomputing import recomputed_checks

    stored = faulty_export.found(served.faulty)
    async with session(served, "third", "auto") as heard:
        question = await heard.call("verification_take")
        right = reviewing.right_answer(stored)
        told = await heard.call(
            "verification_submit",
            verification=question["verification"],
            outcome="fail",
            place=dict(right.place),
            values={name: right.values[name] for name in question["values"] if name in right.values},
            problems=[{"code": "not-equal", "where": dict(right.place), "value": 4096}],
        )
        assert told == {
            "verification": question["verification"],
            "received": True,
            "next": "verification_take()",
        }
    after = Findings(served.faulty.workspace).get(stored.finding.id)
    assert after.verifications[-1].principal == "third"
    assert after.verifications[-1].comparison
    assert str(after.verifications[-1].comparison.result) == "agree"
    assert (after.state is State.REBUILT) == ("export" not in recomputed_checks())
    assert not (served.faulty.home / after.verifications[-1].kept.folder).exists()
    Findings(served.faulty.workspace).step(
        stored.finding.id, State.DISPUTED, "x"
    ) if after.state is State.PROPOSED else None


async def test_a_verifier_is_not_asked_about_a_finding_of_its_own_name(served: Served) -> None:
    from plumbline_mcp.findings.proposing import propose

    stored = propose(served.faulty.workspace, faulty_export.proposal(served.faulty), "second")
    async with session(served, "second", "auto") as heard:
        assert "no question is open for you" in (await heard.call("verification_take"))["error"]
    Findings(served.faulty.workspace).step(stored.finding.id, State.DISPUTED, "x")


async def test_an_agent_goes_from_a_verdict_to_a_signed_finding_through_the_server(served: Served) -> None:
    """Propose, recompute, ask, sign at the queue, confirm: each next call is named by the one before."""
    faulty = served.faulty
    async with session(served, "worker", "auto") as heard:
        words: dict[str, Any] = {
            "verdicts": [faulty.verdict.id],
            "title": "A projection is spoiled on the way out",
            "pattern": 6,
            "silent": True,
            "cause": "the exporter writes other bytes",
            "fix": "do not",
            "cheapest_check": "check export",
            "place": {"tensor": TENSOR},
            "evidence": [f"{faulty.run_id}:output/config.json:bytes 0-63"],
        }
        told = await heard.call("finding_propose", **words)
        assert (await heard.call("finding_propose", **words))["id"] == told["id"]
        other = await heard.call("finding_propose", **words | {"cause": "something else"})
        assert other["id"] != told["id"]
        assert told["state"] == "proposed", told
        assert told["next"].startswith(f'finding_recompute(finding_id="{told["id"]}")')
        assert (
            "only a rebuilt finding is decided"
            in (await heard.call("finding_confirm", finding_id=told["id"]))["error"]
        )
        rebuilt = await heard.call("finding_recompute", finding_id=told["id"])
        assert rebuilt["state"] == "rebuilt", rebuilt
        assert await heard.call("finding_recompute", finding_id=told["id"]) == rebuilt
        asked = await heard.call("finding_confirm", finding_id=told["id"])
        assert (asked["state"], asked["next"].split(";")[0]) == (
            "rebuilt",
            f"a reviewer decides {asked['ticket']}",
        )
        assert "verification_take" not in {tool.name for tool in (await heard.client.list_tools()).tools}
        ticket = faulty.workspace.approvals.ticket(asked["ticket"])
        reviewing.decided(faulty.workspace, ticket, "approve", "seen")
        done = await heard.call("finding_confirm", finding_id=told["id"])
        assert (done["state"], done["ticket"]) == ("confirmed", asked["ticket"])
        assert await heard.call("finding_confirm", finding_id=told["id"]) == done
        Findings(faulty.workspace).step(other["id"], State.DISPUTED, "x")
        assert [step["state"] for step in done["steps"]] == ["proposed", "rebuilt", "confirmed"]
        shown = await heard.call("finding_show", finding_id=told["id"])
        assert shown["untrusted_evidence"][0].startswith(
            f"{faulty.run_id} output/config.json bytes 0-63 sha256 "
        )
        listed = await heard.call("finding_list", state="confirmed")
        assert [one["id"] for one in listed["findings"]] == [told["id"]]
        unknown = await heard.call("finding_show", finding_id="finding-0999")
        assert "the nearest are" in unknown["error"]


def test_copies_that_nobody_needs_any_more_are_swept(served: Served) -> None:
    import os

    from plumbline_mcp.findings.verification import FOLDER, take_next

    old = served.faulty.home / FOLDER / "0123456789abcdef"
    old.mkdir(parents=True)
    (old / "model.safetensors").write_bytes(b"x")
    stored = faulty_export.found(served.faulty)
    taken = take_next(served.faulty.workspace, "somebody")
    assert taken
    assert taken.finding == stored.finding.id
    used = served.faulty.home / taken.kept.folder
    for folder in (old, used):
        os.utime(folder, (0, 0))
    assert take_next(served.faulty.workspace, "somebody") == taken
    assert (old.exists(), used.exists()) == (False, True)


def test_the_session_is_served_by_the_installed_program(served: Served) -> None:
    assert served.url.startswith("http://127.0.0.1:")
    assert Path(served.faulty.home / "plumbline.db").is_file()
