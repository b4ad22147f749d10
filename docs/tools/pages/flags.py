"""The generated parts of `docs/reference/flags.md`."""

from __future__ import annotations

from backend_caps.resolution.engine import ENGINES, ENVIRONMENT_PREFIX, engine, option_of
from backend_caps.resolution.flags import ServerFlags
from docs.tools.markdown import table
from docs.tools.sources import attribute_docs
from docs.tools.values import values_of


def flags() -> str:
    """Give each server flag that matters, with its spellings on a command line."""
    docs = attribute_docs()["ServerFlags"]
    known = engine(ENGINES[-1])
    rows = []
    for name, field in ServerFlags.model_fields.items():
        if name == "unrelated":
            continue
        aliases = [each for each in known.spellings(name) if each != option_of(name)]
        spelled = " ".join(f"`{each}`" for each in (option_of(name), *aliases))
        is_switch = isinstance(field.default, bool)
        takes = "nothing" if is_switch else values_of(field.annotation)
        rows.append(
            (spelled, takes.removesuffix(" or not given"), _default(field.default), docs[name])
        )
    return table(("flag", "takes", "default", "meaning"), rows)


def _default(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "off"
    return f"`{value}`"


def environment() -> str:
    """Give the variable of a flag, as an example."""
    return f"`{ENVIRONMENT_PREFIX}PAGE_SIZE=16` is `--page-size 16`."


def engines() -> str:
    """Give each engine version with how many flags and backends it is known to have."""
    rows = []
    for name in ENGINES:
        known = engine(name)
        num_options = len(set(known.options.values()))
        rows.append((f"`{name}`", str(num_options), str(len(known.attention_backends))))
    return table(("engine version", "flags", "backend names"), rows)
