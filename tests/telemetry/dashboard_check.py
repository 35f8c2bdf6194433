"""Whether every curve of the dashboard has something to draw, asked of a real Prometheus.

For any exporter under traffic: the scripted one of test_prometheus.py, or a whole Forebay.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from proxy.telemetry.dashboard import expressions
from tests.parts.prometheus import Prometheus, lint, prometheus

SCRAPES = 4
WINDOW = "4s"  # eight scrapes; a rate needs two


async def check_dashboard(metrics_url: str, directory: Path) -> None:
    """Fail unless promtool likes the metrics and each expression of the dashboard returns a number for them.

    Traffic must go on meanwhile, and must hold some of everything: a quantile of nothing is no number.
    directory: an empty one, for Prometheus's data.
    """
    async with aiohttp.ClientSession() as session, session.get(metrics_url) as response:
        assert response.status == 200
        assert await lint(await response.read()) == ""
    async with prometheus(directory, [metrics_url]) as server:
        await server.scraped(SCRAPES)
        empty = await nothing_to_draw(server, metrics_url)
    assert not empty, "nothing to draw for\n" + "\n".join(empty)


async def nothing_to_draw(server: Prometheus, metrics_url: str) -> list[str]:
    """The dashboard's expressions that return no number for this exporter, each with its panel's title."""
    instance = re.escape(urlsplit(metrics_url).netloc).replace("\\", "\\\\")  # a regular expression in a PromQL string
    return [
        f"{title}: {expr}"
        for title, expr in expressions(instance=instance, rate_interval=WINDOW)
        if all(math.isnan(value) for _, value in await server.query(expr))
    ]
