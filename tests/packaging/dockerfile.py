"""A Dockerfile as stages of steps, as far as ours uses the language; anything else is an assertion.

Knows nothing of what the steps do.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

KNOWN = frozenset(
    ("FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD")
)


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: `RUN text`, or `COPY --from=build words…` with its flags apart."""

    verb: str
    text: str
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """What is said, word by word, in either form: `a b` or `["a", "b"]`."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


@dataclass(frozen=True, slots=True)
class Stage:
    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def last(self, verb: str) -> Step:
        """The one that counts, where each replaces the one before it."""
        return [step for step in self.steps if step.verb == verb][-1]


def parse(text: str) -> list[Stage]:
    """The stages, in order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for instruction in "\n".join(lines).replace("\\\n", "").splitlines():
        if not instruction.strip():
            continue
        verb, _, rest = instruction.strip().partition(" ")
        assert verb in KNOWN, f"{verb} is not tried by the tests yet"
        flags: dict[str, str] = {}
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            name, _, value = flag[2:].partition("=")
            flags[name] = value
        if verb == "FROM":
            base, *named = rest.split()
            stages.append(Stage(base, named[-1] if named else ""))
        else:
            stages[-1].steps.append(Step(verb, rest.strip(), flags))
    return stages


def ignored(path: str, dockerignore: str) -> bool:
    """Does .dockerignore keep `path` from the builder? The last pattern that fits it or a folder above it decides."""
    parts = path.split("/")
    places = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    kept_out = False
    for line in dockerignore.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        inclusion = pattern.startswith("!")
        glob = pattern.lstrip("!")
        if any(_fits(place, glob) for place in places):
            kept_out = not inclusion
    return kept_out


def _fits(place: str, glob: str) -> bool:
    """A pattern's `*` stops at `/`; `**/` in front stands for any folders, or none."""
    names, globs = place.split("/"), glob.split("/")
    if globs[0] == "**":
        names, globs = names[-len(globs) + 1 :], globs[1:]
    return len(names) == len(globs) and all(map(fnmatchcase, names, globs))
