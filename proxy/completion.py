"""What `forebay completion SHELL` prints: completion of the command line, made from its parser.

Invariants
    Every command, flag and choice that the parser knows is offered, and no other.
    A value is offered files where its metavar says FILE, its choices where it has some, else nothing.

Knows argparse and three shells; nothing of what the commands do.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Value:
    """What may stand where a value is wanted."""

    files: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """`--name`, with the value that follows it, if one does."""

    name: str
    value: Value | None
    help: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command, "" for what stands before any. words: what it takes without a flag."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    words: tuple[Value, ...]

    @property
    def files(self) -> bool:
        return any(value.files for value in self.words)

    @property
    def offered(self) -> list[str]:
        """What may come next, files apart."""
        return [choice for value in self.words for choice in value.choices] + [flag.name for flag in self.flags]


def commands(parser: argparse.ArgumentParser) -> list[Command]:
    """What the parser knows: itself first, then its commands."""
    parts = _actions(parser)
    (table,) = (part for part in parts if isinstance(part, argparse._SubParsersAction))  # noqa: SLF001  # no public name
    helps = {choice.dest: choice.help or "" for choice in table._get_subactions()}  # noqa: SLF001  # as above
    below = [_command(name, helps[name], _actions(each)) for name, each in table.choices.items()]
    return [_command("", "", parts), *below]


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  # argparse tells it nowhere else


def _command(name: str, text: str, actions: list[argparse.Action]) -> Command:
    flags, words = [], []
    for action in actions:
        value = Value(action.metavar == "FILE", tuple(map(str, action.choices or ())))
        if action.option_strings:
            flags.append(Flag(action.option_strings[-1], None if action.nargs == 0 else value, action.help or ""))
        else:
            words.append(value)
    return Command(name, text, tuple(flags), tuple(words))


_BASH: Final = """\
_forebay() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} offered= files=
    [[ $before == '=' ]] && before=${COMP_WORDS[COMP_CWORD-2]}
    [[ $word == '=' ]] && word=
    case $((COMP_CWORD > 1)):${COMP_WORDS[1]}:$before in
%s
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$word"))
    if [[ -n $files ]]; then
        compopt -o filenames 2> /dev/null
        local IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
}
complete -F _forebay forebay
"""

_ZSH: Final = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""


def bash(known: list[Command]) -> str:
    return _BASH % "\n".join(f"        {pattern}) {said} ;;" for pattern, said in _cases(known))


def _cases(known: list[Command]) -> Iterator[tuple[str, str]]:
    """Where the cursor may stand, `is it behind a command : which : the word before`, and what is offered there."""
    top, *below = known
    yield "0:*", _offer(top.offered, files=False)
    for command in below:
        for flag in command.flags:
            if flag.value is not None:
                yield f"1:{command.name}:{flag.name}", _offer(list(flag.value.choices), files=flag.value.files)
        yield f"1:{command.name}:*", _offer(command.offered, files=command.files)


def _offer(words: list[str], *, files: bool) -> str:
    return f"offered={shlex.quote(' '.join(words))}" + (" files=1" if files else "")


def zsh(known: list[Command]) -> str:
    """By zsh's own reading of bash's completions."""
    return _ZSH + bash(known)


def fish(known: list[Command]) -> str:
    top, *below = known
    lines = ["complete -c forebay -f"]
    for command in below:
        here = f"-n {shlex.quote(f'__fish_seen_subcommand_from {command.name}')}"
        lines.append(f"complete -c forebay -n __fish_use_subcommand -a {command.name} -d {shlex.quote(command.help)}")
        lines += (f"complete -c forebay {here} {_fish_flag(flag)}" for flag in command.flags)
        lines += (f"complete -c forebay {here} {_fish_value(value)}" for value in command.words)
    lines += (f"complete -c forebay -n __fish_use_subcommand {_fish_flag(flag)}" for flag in top.flags)
    return "".join(f"{line}\n" for line in lines)


def _fish_flag(flag: Flag) -> str:
    value = "" if flag.value is None else f" -r {_fish_value(flag.value)}"
    return f"-l {flag.name.removeprefix('--')}{value} -d {shlex.quote(flag.help)}"


def _fish_value(value: Value) -> str:
    if value.files:
        return "-F"
    return f"-f -a {shlex.quote(' '.join(value.choices))}" if value.choices else "-f"


SCRIPTS: Final[Mapping[str, Callable[[list[Command]], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
