"""The slow reader that the fast one is held against: one character at a time, nothing shared with it.

Objects become lists of (key, value) pairs in `Pairs`, so that a key that comes twice is seen; strings,
numbers and literals stay their lexemes.
"""

from __future__ import annotations

from typing import TypeAlias

Lexed: TypeAlias = "Pairs | list[Lexed] | str"

DIGITS = "0123456789"
HEX = DIGITS + "abcdefABCDEF"
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Malformed(Exception):
    """The text is not what we call JSON."""


class Pairs(list[tuple[str, "Lexed"]]):
    """The members of an object, in order, repetitions kept."""

    def repeats(self) -> bool:
        keys = [key for key, _ in self]
        return len(set(keys)) < len(keys)


class SlowReader:
    def __init__(self, text: bytes) -> None:
        try:
            self.text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise Malformed from None
        self.at = 0
        self.repeated = False

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, wanted: str) -> None:
        if not self.text.startswith(wanted, self.at):
            raise Malformed
        self.at += len(wanted)

    def space(self) -> None:
        while self.peek() and self.peek() in " \t\r\n":
            self.at += 1

    def value(self) -> Lexed:
        self.space()
        first = self.peek()
        if first == "{":
            return self.members()
        if first == "[":
            return self.elements()
        start = self.at
        if first == '"':
            self.string()
        elif first and first in DIGITS + "-":
            self.number()
        else:
            for word in ("true", "false", "null", "NaN", "Infinity"):
                if first and word[0] == first:
                    self.take(word)
                    break
            else:
                raise Malformed
        return self.text[start : self.at]

    def members(self) -> Pairs:
        self.take("{")
        found = Pairs()
        self.space()
        if self.peek() == "}":
            self.take("}")
            return found
        while True:
            self.space()
            key = self.string()
            self.space()
            self.take(":")
            found.append((key, self.value()))
            self.space()
            if self.peek() == "}":
                self.take("}")
                self.repeated = self.repeated or found.repeats()
                return found
            self.take(",")

    def elements(self) -> list[Lexed]:
        self.take("[")
        found: list[Lexed] = []
        self.space()
        if self.peek() == "]":
            self.take("]")
            return found
        while True:
            found.append(self.value())
            self.space()
            if self.peek() == "]":
                self.take("]")
                return found
            self.take(",")

    def string(self) -> str:
        self.take('"')
        decoded = ""
        while (character := self.peek()) != '"':
            if not character or ord(character) < 0x20:
                raise Malformed
            self.at += 1
            if character != "\\":
                decoded += character
                continue
            kind = self.peek()
            self.at += 1
            if kind == "u":
                code = self.hex()
                if 0xD800 <= code < 0xDC00:
                    self.take("\\u")
                    low = self.hex()
                    if not 0xDC00 <= low < 0xE000:
                        raise Malformed
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                elif 0xDC00 <= code < 0xE000:
                    raise Malformed
                decoded += chr(code)
            elif kind in ESCAPES and kind:
                decoded += ESCAPES[kind]
            else:
                raise Malformed
        self.take('"')
        return decoded

    def hex(self) -> int:
        digits = self.text[self.at : self.at + 4]
        if len(digits) < 4 or any(digit not in HEX for digit in digits):
            raise Malformed
        self.at += 4
        return int(digits, 16)

    def number(self) -> None:
        if self.peek() == "-":
            self.take("-")
            if self.peek() == "I":
                self.take("Infinity")
                return
        if self.peek() == "0":
            self.take("0")
        else:
            self.digits()
        if self.peek() == ".":
            self.take(".")
            self.digits()
        if self.peek() and self.peek() in "eE":
            self.at += 1
            if self.peek() and self.peek() in "+-":
                self.at += 1
            self.digits()

    def digits(self) -> None:
        start = self.at
        while self.peek() and self.peek() in DIGITS:
            self.at += 1
        if self.at == start:
            raise Malformed


def slow_read(text: bytes) -> tuple[Lexed, bool]:
    """The value of `text`, and whether a key came twice in one object; raises Malformed."""
    reader = SlowReader(text)
    value = reader.value()
    reader.space()
    if reader.at < len(reader.text):
        raise Malformed
    return value, reader.repeated


def depth_of(value: Lexed) -> int:
    if isinstance(value, str):
        return 0
    inner = [one for _, one in value] if isinstance(value, Pairs) else value
    return 1 + max((depth_of(one) for one in inner), default=0)
