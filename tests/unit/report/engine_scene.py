"""Two engines as a reader of their source would find them; `documents/engines.json` has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend_caps import Declaration, Given, Origin, Part, Rule, RuleSet, Source
from backend_caps.capability.backend import Backend, EngineClass, Problem, Reading, Status
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities, HostSeqLens
from backend_caps.engines.reading import EngineReading
from backend_caps.report.document import value_of
from backend_caps.resolution.engine import Engine
from tests.unit.report.stored import FOLDER

_NOTHING: Mapping[str, Reading] = {}
_STORED: Mapping[str, list[dict[str, Any]]] = json.loads((FOLDER / "engines.json").read_bytes())


def read_class(name: str, at: str, readings: Mapping[str, Reading] = _NOTHING) -> Backend:
    """Describe a class that declares nothing, as a reader finds it."""
    return Backend(
        name=name,
        status=Status.OK,
        source=Source(distribution="sglang", version="0.5.23", declared_at=at),
        declaration=Declaration(),
        engine_class=EngineClass(path=f"sglang.srt.{name}", readings=readings),
    )


def read_name(name: str, *parts: Part) -> Backend:
    """Describe a name that flags use for some classes."""
    source = Source(distribution="sglang", version="0.5.23", declared_at="sglang/registry.py:9")
    return Backend(name=name, status=Status.OK, source=source, declaration=Declaration(parts=parts))


def says(words: str, origin: Origin) -> Reading:
    """Read something of a class, whose value and line are not known."""
    return Reading(origin=origin, words=words)


def _stored_backend(own: dict[str, Any]) -> Backend:
    """Read one that is stored: a class, a name of classes, or what cannot be read."""
    read, said = own["engine_class"], own["declaration"]
    declaration = None if said is None else Declaration.model_validate_json(json.dumps(said))
    stated = {} if declaration is None else declaration.capabilities.stated()
    engine_class = None
    if read is not None:
        engine_class = EngineClass(
            path=read["path"],
            registered_as=tuple(read["registered_as"]),
            readings={
                name: _reading(name, each, stated) for name, each in read["readings"].items()
            },
            attributes={
                name: _reading(name, each, {}) for name, each in read["attributes"].items()
            },
            composite=read["composite"],
        )
    return Backend(
        name=own["name"],
        status=Status(own["status"]),
        source=Source(**own["source"]),
        declaration=declaration,
        problems=tuple(Problem(**each) for each in own["problems"]),
        engine_class=engine_class,
    )


def _reading(name: str, said: dict[str, Any], stated: Mapping[str, object]) -> Reading:
    """Read what a source says; the value that a class declares is in its declaration."""
    origin, value = Origin(said["origin"]), said.get("value")
    if name in CAPABILITIES:
        value = stated[name] if origin is Origin.DECLARED else value and value_of(name, value)
    return Reading(**{**said, "origin": origin, "value": value})


_TBO = Rule(
    name="two-batch-overlap",
    given=Given(enable_two_batch_overlap=True),
    forces=Capabilities(host_seq_lens=HostSeqLens.EXACT),
    reason="the halves are divided by the lengths on the host (sglang/srt/overlap.py:12)",
)
RULES = RuleSet(
    name="sglang-0.5.23",
    rules=(_TBO,),
    relays=frozenset({"EAGLE"}),
    algorithms=frozenset({"EAGLE", "NGRAM"}),
)
"""What the flags of the small SGLang force."""
COMMAND_LINE = Engine(
    name="sglang-0.5.23",
    options={
        "--attention-backend": ("--attention-backend", "--attn"),
        "--attn": ("--attention-backend", "--attn"),
        "--speculative-algorithm": ("--speculative-algorithm",),
        "--enable-two-batch-overlap": ("--enable-two-batch-overlap",),
    },
    attention_backends=frozenset({"fa3", "fa4", "flashinfer", "torn", "triton"}),
)
"""What its server takes; `--attn` is an alias that no stored version has."""
SGLANG = EngineReading(
    engine="sglang",
    version="0.5.23",
    source="sglang-0.5.23-py3-none-any.whl",
    backends=tuple(map(_stored_backend, _STORED["sglang"])),
    rules=RULES,
    command_line=COMMAND_LINE,
    problems=(
        Problem(
            code="not-found",
            message="sglang/srt/choices.py is not there.",
            remedy="Tell the maintainers.",
        ),
    ),
    num_files=2141,
    num_parsed=58,
)
"""A small SGLang."""
VLLM = EngineReading(
    engine="vllm",
    version=None,
    source="installed",
    backends=tuple(map(_stored_backend, _STORED["vllm"])),
    rules=None,
    command_line=None,
    problems=(),
    num_files=1,
    num_parsed=1,
)
"""A smaller vLLM."""
