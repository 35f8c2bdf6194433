"""`python -m benchmarks [--quick] [--only hits|batching]`: measure, print the table, write out/bench.json."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import load, measures, report, returns
from benchmarks.processes import cores
from benchmarks.rounds import Rounds, Shot, in_turn
from proxy.measure.simulator import Run

OUT = Path("out/bench.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="three short rounds: about a minute, and less to be relied on"
    )
    parser.add_argument("--rounds", type=int, help="how many (9; with --quick 3)")
    parser.add_argument("--only", choices=("hits", "batching"), help="one half of it")
    parser.add_argument("--out", type=Path, default=OUT, help=f"where the JSON goes ({OUT})")
    wanted = parser.parse_args()
    count = wanted.rounds or (3 if wanted.quick else 9)
    try:
        load.program()
        cores()
    except (load.NoWrk, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    about = {"machine": report.machine(), "command": " ".join(["python -m benchmarks", *sys.argv[1:]]), "count": count}
    began = time.monotonic()
    rounds: dict[str, Rounds] = {}
    found: dict[str, float] = {}
    simulated: dict[int, Run] = {}
    back: dict[int, dict[str, float]] = {}
    if wanted.only != "batching":
        with measures.hits_and_passing(1 if wanted.quick else 2) as setting:
            rounds |= _all(setting, count)
            found |= measures.proofs(setting.watched)
    if wanted.only != "hits":
        try:
            with measures.batching(2 if wanted.quick else 4) as setting:
                rounds |= _all(setting, count)
                found |= measures.proofs(setting.watched)
        except pytest.skip.Exception as missing:
            print(f"*** not measured, batching: {missing} ***", file=sys.stderr)
        else:
            simulated = measures.simulated()
            if far := _far(rounds, simulated):
                back = returns.measured(far)
    figures = measures.figures(rounds, found)
    about["seconds"] = round(time.monotonic() - began)
    print(report.table(rounds, simulated))
    print()
    for name, value in found.items():
        print(f"{name}: {value:g}")
    for crowd, times in back.items():
        print(f"{crowd} callers differ from the simulation by more than {report.FAR:.0%}: {times}")
    for figure in figures:
        print(figure)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    document = report.document(about, rounds=rounds, simulated=simulated, found=found, figures=figures, returns=back)
    wanted.out.write_text(json.dumps(document, indent=1))
    print(f"\n{count} interleaved rounds in {about['seconds']} s; every one of them is in {wanted.out}")
    return 0


def _all(setting: measures.Setting, count: int) -> dict[str, Rounds]:
    """Every contender in every round, one after the other."""
    _, other = cores()
    names = list(setting.contenders)
    shots: dict[str, list[Shot]] = {name: [] for name in names}
    for number in range(count):
        for name in in_turn(names, number):
            print(f"\r\x1b[Kround {number + 1} of {count}: {name}", end="", file=sys.stderr, flush=True)
            shots[name].append(setting.contenders[name].shoot(other))
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return {name: Rounds(of) for name, of in shots.items()}


def _far(rounds: Mapping[str, Rounds], simulated: Mapping[int, Run]) -> list[int]:
    """The crowds whose throughput is not what the simulation says."""
    rates = {n: rounds[f"batched {n}/forebay"].median(lambda shot: shot.rate) for n in simulated}
    return [n for n, rate in rates.items() if abs(rate / simulated[n].rate - 1) > report.FAR]


if __name__ == "__main__":
    sys.exit(main())
