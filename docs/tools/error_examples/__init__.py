"""One example of every error, so that its sentence can be read before it is met."""

from __future__ import annotations

from docs.tools.error_examples.commands import COMMANDS, INSIGHTS
from docs.tools.error_examples.conformance import KIT, SIMULATOR
from docs.tools.error_examples.engines import ENGINES
from docs.tools.error_examples.installed import DISCOVERY, LOCKS
from docs.tools.error_examples.occasion import Occasion
from docs.tools.error_examples.resolution import BACKENDS, FLAGS, PLANS
from docs.tools.error_examples.runtime import ENGINE, MODELS, REQUESTS
from docs.tools.error_examples.settings import SETTINGS
from docs.tools.error_examples.startup import RANKS, RELAY

__all__ = ["BY_OCCASION", "Occasion"]

BY_OCCASION = (
    FLAGS,
    BACKENDS,
    PLANS,
    SETTINGS,
    DISCOVERY,
    LOCKS,
    ENGINES,
    RELAY,
    RANKS,
    MODELS,
    ENGINE,
    REQUESTS,
    INSIGHTS,
    SIMULATOR,
    KIT,
    COMMANDS,
)
"""Every error, by the occasion on which it is raised, as the page has them."""
