"""Texts that quality is measured on, each pinned by the SHA-256 of its UTF-8 bytes."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from roofgap.shapes.errors import RoofgapError

# The first topics of CPython 3.11's `help("topics")`: English technical prose that comes with the interpreter.
PYDOC_CHARACTERS = 40_000
PYDOC_SHA256 = "f45e172e1c7c005037277cbe6d438aabd96aa55026ef078cc914935f64ca7038"


@dataclass(frozen=True, slots=True)
class Text:
    """A text and what it is.

    Attributes:
        name: for reports.
        origin: where it comes from.
        text: the characters.
    """

    name: str
    origin: str
    text: str

    @property
    def sha256(self) -> str:
        """Of the UTF-8 bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def probe(domain: str | None = None) -> Text:
    """The committed public-domain text of about 8,000 tokens, or one of its parts.

    Args:
        domain: ``prose``, ``technical`` or ``code``; None for all three in this order.

    Raises:
        RoofgapError: no such domain, or a file that is not what was committed.
    """
    folder = files("roofgap.e2e.texts")
    index: dict[str, Any] = json.loads(folder.joinpath("probe.json").read_text("utf-8"))
    parts = {part["domain"]: part for part in index["parts"]}
    if domain is not None and domain not in parts:
        raise RoofgapError(f"domain {domain!r}", "unknown", f"use one of {', '.join(parts)}")
    texts = []
    for name in parts if domain is None else (domain,):
        content = folder.joinpath(parts[name]["file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != parts[name]["sha256"]:
            raise RoofgapError(
                parts[name]["file"], "is not the text whose sha256 was committed", "reinstall roofgap"
            )
        texts.append(content.decode())
    if domain is not None:
        return Text(f"probe/{domain}", parts[domain]["origin"], texts[0])
    return Text("probe", "; ".join(part["origin"] for part in parts.values()), "".join(texts))


def read_text(path: Path) -> Text:
    """A user's own text, UTF-8.

    Raises:
        RoofgapError: no such file, not UTF-8, or empty.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise RoofgapError(f"text {path}", f"cannot be read ({error.strerror})", "check the path") from error
    except UnicodeDecodeError as error:
        raise RoofgapError(f"text {path}", f"is not UTF-8 (byte {error.start})", "convert it") from error
    if not text.strip():
        raise RoofgapError(f"text {path}", "is empty", "give a few thousand words")
    return Text(path.name, str(path), text)


def pydoc_topics() -> Text:
    """The beginning of the interpreter's ``pydoc_data.topics``, an empty line between topics.

    Raises:
        RoofgapError: the interpreter's text is not CPython 3.11's.
    """
    from pydoc_data.topics import topics

    text = Text(
        "pydoc-topics", "pydoc_data.topics of CPython 3.11", "\n\n".join(topics.values())[:PYDOC_CHARACTERS]
    )
    if text.sha256 != PYDOC_SHA256:
        raise RoofgapError(
            f"pydoc_data.topics of Python {sys.version.split()[0]}",
            "is not the text of CPython 3.11 that the figures were measured on",
            "run this with Python 3.11, or give a text of your own",
        )
    return text


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text as a model reads it.

    Attributes:
        source: the text.
        tokens: [n] token ids, no special ones added.
        ends: [n] UTF-8 bytes of the text up to the end of each token.
    """

    source: Text
    tokens: torch.Tensor
    ends: torch.Tensor

    def bytes_of(self, first: int, count: int) -> int:
        """Bytes of ``count`` tokens from ``first`` on."""
        before = int(self.ends[first - 1]) if first else 0
        return int(self.ends[first + count - 1]) - before


def tokenise(source: Text, tokenizer: Any) -> TokenText:
    """Tokens by a fast transformers tokenizer, and where each ends in the text.

    A character that takes several tokens ends with the first of them, as the tokenizer reports it; sums over
    a window are off by at most the bytes of one character.
    """
    encoded = tokenizer(source.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    lengths = [0]
    for character in source.text:
        lengths.append(lengths[-1] + len(character.encode()))
    ends = [lengths[end] for _, end in encoded["offset_mapping"]]
    return TokenText(source, torch.tensor(encoded["input_ids"]), torch.tensor(ends))
