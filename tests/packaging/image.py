"""The Dockerfile's own steps, taken in a folder: what stands in for an image where there is no Docker.

Each stage begins with a fresh virtual environment in place of the base image's Python. Every absolute path that a step
says is one below `root`, so that the steps are the Dockerfile's to the letter and touch nothing else.

Where the tests are root, what is started runs as the image's user, without capabilities, in a mount namespace in which
every file system is read-only. Elsewhere it runs as whoever runs the tests.

Not tried by this: the base image itself, layers, and Docker's reading of the file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.packaging.dockerfile import Stage, Step, ignored, parse

ROOT = Path(__file__).parents[2]
_ABSOLUTE = re.compile(r"(?<![^\s=:\"'\[])/(?=[a-z])")
_CONFINED = """
for at in $(cut -d ' ' -f 2 /proc/self/mounts); do mount -o remount,bind,ro "$at" 2> /dev/null; done
user=$1; shift
exec setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --no-new-privs \\
    --bounding-set=-all --inh-caps=-all -- "$@"
"""


class Image:
    """root: where the image's files are. built: those of earlier stages, by name. stage: the one that is shipped."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.built: dict[str, Path] = {}
        self.stage = Stage("", "")
        self._base = directory / "base"
        self._fresh = directory / "fresh"  # what every stage begins with
        self._environment: dict[str, str] = {}
        self._at = "/"

    @property
    def base_packages(self) -> set[str]:
        """What is installed beside the base image's Python."""
        return {path.name.partition("-")[0] for path in self._base.glob("lib/python3.*/site-packages/*")}

    @property
    def user(self) -> str:
        return self.stage.last("USER").text

    def path(self, path: str) -> Path:
        """Where a path of the image is here. One that does not begin with `/` counts from the WORKDIR."""
        return self.root / os.path.normpath(Path(self._at, path)).lstrip("/")

    def build(self) -> None:
        """Take every step."""
        subprocess.run([_python(), "-m", "venv", str(self._fresh)], check=True)
        for stage in parse((ROOT / "Dockerfile").read_text(encoding="utf-8")):
            self._begin(stage)
            for step in stage.steps:
                self._take(step)

    def _begin(self, stage: Stage) -> None:
        if self.stage.base:
            self.built[self.stage.name] = self.root.rename(self.root.with_name(self.stage.name))
        self.stage = stage
        self._at = "/"
        self.root.mkdir(mode=0o755)
        shutil.rmtree(self._base, ignore_errors=True)
        _link(self._fresh, self._base)
        self._environment = {"PATH": f"{self._base / 'bin'}:/usr/bin:/bin"}

    def _take(self, step: Step) -> None:
        if step.verb == "WORKDIR":
            self._at = step.text
            self.path(".").mkdir(parents=True, exist_ok=True)
        elif step.verb == "COPY":
            self._copy(step)
        elif step.verb == "RUN":
            done = subprocess.run(
                ["sh", "-c", self._here(step.text)],
                cwd=self.path("."),
                env=self._pip() | self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"RUN {step.text}\n{done.stdout}"
        elif step.verb == "ENV":
            for word in step.words:
                name, _, value = word.partition("=")
                self._environment[name] = self._here(value).replace(f"${name}", self._environment.get(name, ""))

    def _copy(self, step: Step) -> None:
        *sources, to = step.words
        target = self.path(to)
        for source in sources:
            if stage := step.flags.get("from"):
                _link(self.built[stage] / source.lstrip("/"), target)
                continue
            for path in sent():
                if path == source or path.startswith(f"{source.rstrip('/')}/"):
                    name = path[len(source) :] or (Path(path).name if to.endswith("/") else "")
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / path, target / name)
            assert target.exists(), f"COPY {source}: .dockerignore keeps it out, or it is not there"

    def _here(self, text: str) -> str:
        return _ABSOLUTE.sub(f"{self.root}/", text)

    @staticmethod
    def _pip() -> dict[str, str]:
        """The machine's own way to packages, whatever it is."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FOREBAY_", "PYTHON", "VIRTUAL_ENV", "PYTEST"))
        }

    @property
    def start(self) -> list[str]:
        """What `docker run` would start."""
        return [self._here(word) for word in self.stage.last("ENTRYPOINT").words + self.stage.last("CMD").words]

    @property
    def healthcheck(self) -> list[str]:
        word, *command = _command(self.stage.last("HEALTHCHECK"))
        assert word == "CMD"
        return command

    def environment(self, **more: str) -> dict[str, str]:
        """The image's own variables, and those given with `docker run --env`."""
        return self._environment | more

    def confined(self, command: Sequence[str]) -> list[str]:
        """`command` as the image's user on read-only file systems, where the tests are root; else as it is."""
        program = shutil.which(command[0], path=self._environment["PATH"])
        assert program is not None, f"{command[0]} is not in the image"
        if os.geteuid() != 0:
            return [program, *command[1:]]
        return ["unshare", "--mount", "--", "sh", "-c", _CONFINED, "sh", self.user, program, *command[1:]]

    def __repr__(self) -> str:
        return f"<Image {self.root} from {self.stage.base}>"


def _link(source: Path, target: Path) -> None:
    """A copy of a folder that costs no room: no step changes a file that is there already."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)


def _command(step: Step) -> list[str]:
    """The words of `HEALTHCHECK CMD ["a", "b"]`."""
    word, _, rest = step.text.partition(" ")
    return [word, *Step(word, rest).words]


def sent() -> list[str]:
    """The files that the builder is sent: all of the repository but what .dockerignore names."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    found: list[str] = []
    for folder, folders, files in os.walk(ROOT):
        here = os.path.relpath(folder, ROOT)
        names = [str(Path(here, name)) for name in files]
        found += [name for name in names if not ignored(name, patterns)]
        folders[:] = [name for name in folders if _may_hold(str(Path(here, name)), patterns)]
    return sorted(found)


def _may_hold(folder: str, patterns: str) -> bool:
    """Could something below be sent: is the folder itself, or does an exception name something in it?"""
    return not ignored(folder, patterns) or f"\n!{folder}/" in patterns


def _python() -> str:
    """The machine's own Python, which any user may run, where it can make environments; else that of the tests."""
    for python in (shutil.which("python3", path="/usr/local/bin:/usr/bin"), sys.executable):
        able = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
        if python and subprocess.run([python, "-c", able], capture_output=True, check=False).returncode == 0:
            return python
    raise AssertionError("no Python here can make virtual environments: apt-get install python3-venv")
