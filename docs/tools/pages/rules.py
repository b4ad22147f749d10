"""The generated part of `docs/reference/rules.md`: each rule set that is built in."""

from __future__ import annotations

from backend_caps.resolution.engine import ENGINES, RULE_SETS
from backend_caps.resolution.rules import RuleSet
from docs.tools.markdown import table
from docs.tools.values import shown

_MIXED = (
    "With `--enable-mixed-chunk` and overlapped drafts, `host_seq_lens` counts what prefill "
    "backends declare too."
)


def rules() -> str:
    """Give each built-in rule set with its rules."""
    return "\n\n".join(_rule_set(RuleSet.builtin(name)) for name in RULE_SETS)


def _rule_set(rules: RuleSet) -> str:
    rows = [
        (
            f"`{rule.name}`",
            f"{rule.given}",
            ", ".join(f"`{name}` {shown(value)}" for name, value in rule.forces.stated().items()),
            rule.reason,
        )
        for rule in rules.rules
    ]
    default = ", the default where no SGLang is installed" if rules.name == ENGINES[-1] else ""
    return "\n\n".join(
        (
            f"### {rules.name}{default}",
            f"Overlaps the steps of: {', '.join(sorted(rules.relays))}.",
            f"Built in besides: {', '.join(sorted(rules.algorithms - rules.relays)) or 'none'}.",
            *((_MIXED,) if rules.mixes_relayed_rows else ()),
            table(("rule", "where", "forces", "reason"), rows)
            if rows
            else "No rule forces anything.",
        )
    )
