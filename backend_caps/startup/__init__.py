"""From a server's flags to a configured FutureMap."""
