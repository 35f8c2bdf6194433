"""The long form of the soak, in processes of its own beside all other tests: little of it is work, much is waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

MINUTES: Final = 2
RATE: Final = 80  # requests a second


@dataclass(frozen=True)
class Soak:
    """One under way. log: what it says; report: where it writes what it saw."""

    process: subprocess.Popen[bytes]
    log: Path
    report: Path

    def end(self) -> None:
        """End it with all its parts, if it is not over."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(30)


SOAK: Final = pytest.StashKey[Soak]()


def begun() -> Soak:
    """One that has just begun."""
    directory = Path(tempfile.mkdtemp(prefix="forebay-soak-"))
    log, report = directory / "log", directory / "soak.json"
    command = ["-m", "benchmarks.soak", "--minutes", str(MINUTES), "--rate", str(RATE), "--out", str(report)]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    return Soak(process, log, report)
