"""Forebay: a reverse-proxy sidecar that caches, coalesces and batches inference calls.

Imports go down only (tests/test_layers.py parses them): settings, terms → http, protocols, caching,
batching → telemetry → upstream → routing, cache_status → relay, dispatch → filling → proofs → readings → orders →
understanding → answers → pipeline → config → admin → sidecar → measure → demo → completion, survey → cli. Read
`pipeline.py` and `answers.py` first: the life of a request, and of a call.
Pure files know no clock, loop or socket; drivers that do are thin. docs/architecture.md is the map.
"""

__version__ = "0.1.0"
