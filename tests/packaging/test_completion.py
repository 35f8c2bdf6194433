"""Promises of `forebay completion`, kept by the shells themselves."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from proxy import completion
from proxy.cli import SHELLS, main, parser
from tests.parts.availability import missing

Complete = Callable[[str], set[str]]


def _called(script: str, line: str) -> str:
    """What bash does at the end of `line`, which ends in the word that is completed."""
    words = line.split(" ")
    return "\n".join(
        [
            script,
            f"COMP_WORDS=({' '.join(map(shlex.quote, words))})",
            f"COMP_CWORD={len(words) - 1}",
            "_forebay",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
    )


@pytest.fixture(params=["bash", "fish"])  # zsh has a test of its own: it completes nowhere but at a prompt
def complete(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Complete:
    """What the shell offers at the end of a command line, in a folder that holds `own file.yaml` and `deep/`."""
    (tmp_path / "own file.yaml").touch()
    (tmp_path / "deep").mkdir()
    shell: str = request.param
    if shutil.which(shell) is None:
        missing(shell, f"apt-get install {shell}")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out

    def completed(line: str) -> set[str]:
        shells = {
            "bash": ["bash", "--norc", "-c", _called(script, line)],
            "fish": ["fish", "--no-config", "-c", f"{script}complete -C {shlex.quote(line)}"],
        }
        done = subprocess.run(
            shells[shell],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "deep"), "TERM": "dumb", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.stderr == ""
        return {offer.partition("\t")[0].rstrip("/") for offer in done.stdout.splitlines()} - {""}

    return completed


def test_commands_are_offered(complete: Complete) -> None:
    """The first word is one of the commands, as far as it is typed."""
    commands = {command.name for command in completion.commands(parser())} - {""}
    assert {"serve", "check", "health", "completion"} < commands
    assert commands <= complete("forebay ")
    assert complete("forebay che") == {"check"}
    assert "--version" in complete("forebay --v")


def test_flags_of_the_command_are_offered_and_no_others(complete: Complete) -> None:
    """Every flag of `serve` behind `serve`, and none of them behind `health`."""
    assert complete("forebay serve --max") == {"--max-delay", "--max-size"}
    assert complete("forebay serve --") >= {"--config", "--upstream", "--listen", "--admin", "--redis", "--help"}
    assert complete("forebay health --") == {"--admin", "--help"}


def test_files_are_offered_where_a_file_is_meant(complete: Complete) -> None:
    """`--config` and `check` take files; a URL is not one."""
    assert complete("forebay serve --config o") == {"own file.yaml"}
    assert "own file.yaml" in complete("forebay check ")
    assert complete("forebay check d") == {"deep"}
    assert complete("forebay serve --upstream ") == set()


def test_choices_are_offered(complete: Complete) -> None:
    """Where only some words are right, they are offered."""
    assert complete("forebay completion ") >= set(SHELLS)
    assert complete("forebay completion z") == {"zsh"}


_SHOW = 'show() { print -r -- "<<$BUFFER>>" }; zle -N show; bindkey "^Xs" show\n'
_PROMPT = """\
zmodload zsh/zpty
zpty -b shell zsh -f -i
zpty -w shell "PS1= RPS1= PROMPT_SP=; unsetopt prompt_sp; source $1; cd $2"
zpty -w -n shell $3
zpty -w -n shell $'\\t\\x18s'
zpty -r shell said '*<<*>>*'
zpty -d shell
print -r -- ${${said##*<<}%%>>*}
"""


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("forebay che", "forebay check "),
        ("forebay serve --up", "forebay serve --upstream "),
        ("forebay serve --config o", "forebay serve --config own\\ file.yaml "),
        ("forebay completion z", "forebay completion zsh "),
    ],
)
def test_a_tab_at_the_prompt_of_zsh(
    typed: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What zsh itself makes of bash's completions is the whole word, quoted where it must be."""
    if shutil.which("zsh") is None:
        missing("zsh", "apt-get install zsh")
    assert main(["completion", "zsh"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out.replace("compinit;", "compinit -u -D;") + _SHOW)
    (tmp_path / "own file.yaml").touch()
    done = subprocess.run(
        ["zsh", "-f", "-c", _PROMPT, "zsh", str(script), str(tmp_path), typed],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == f"{completed}\n"


def test_an_equals_sign_is_seen_as_bash_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash takes `--config=own` for three words; the file is completed all the same."""
    (tmp_path / "own.yaml").touch()
    monkeypatch.chdir(tmp_path)
    script = completion.SCRIPTS["bash"](completion.commands(parser()))
    for line in ("forebay serve --config = o", "forebay serve --config ="):
        said = subprocess.run(
            ["bash", "--norc", "-c", _called(script, line)], capture_output=True, text=True, check=True
        )
        assert said.stdout == "own.yaml\n"
