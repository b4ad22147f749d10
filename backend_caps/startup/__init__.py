"""From a server's flags to a configured FutureMap."""

from backend_caps.extras import require_extra

require_extra("relay", __name__)
