"""What a plan costs and does, shown by a run: measurements, dry runs and traces. Imports torch."""

from backend_caps.extras import require_extra

require_extra("kit", __name__)
