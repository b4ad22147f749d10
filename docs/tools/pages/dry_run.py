"""The generated part of `docs/reference/dry-run.md`: what a dry run can find."""

from __future__ import annotations

from backend_caps.insight.run_documents import Finding
from docs.tools.markdown import table
from docs.tools.sources import attribute_docs_of


def findings() -> str:
    """Give each thing that can be not as it was decided."""
    docs = attribute_docs_of(Finding)
    rows = [(f"`{own.value}`", docs[own.name]) for own in Finding]
    return table(("finding", "what it is"), rows)
