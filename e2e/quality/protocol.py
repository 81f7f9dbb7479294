"""Which predictions a perplexity is the mean of. Two perplexities mean something beside each other only if
this is equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from roofgap.shapes.errors import RoofgapError


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One pass over part of a text.

    Attributes:
        tokens: [T] what the model is given, BOS included.
        scored: predictions at the end of it that count: of the last ``scored`` tokens.
        first: index in the text of the first scored token.
    """

    tokens: torch.Tensor
    scored: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a text is cut.

    Attributes:
        window: tokens given at a time, BOS included.
        stride: tokens from the beginning of one window to that of the next. Equal to ``window`` (less BOS):
            windows do not overlap, and the first token of each is not scored unless a BOS precedes it. Less:
            the overlap is context.
        bos: token put in front of every window, None for none.
        windows: at most this many; None for the whole text. A last window of fewer than two tokens is left
            out.

    Raises:
        RoofgapError: a window that scores nothing, or a stride that skips tokens.
    """

    window: int = 512
    stride: int = 512
    bos: int | None = None
    windows: int | None = None

    def __post_init__(self) -> None:
        if self.window < 2:
            raise RoofgapError(f"window={self.window}", "must be at least 2", "512 and 2048 are customary")
        if not 1 <= self.stride <= self.window:
            raise RoofgapError(
                f"stride={self.stride}", f"must be 1 to the window's {self.window}", "use the window's length"
            )
        if self.windows is not None and self.windows < 1:
            raise RoofgapError(f"windows={self.windows}", "must be at least 1", "leave it out for all")

    @property
    def label(self) -> str:
        """What must stand beside every perplexity, e.g. ``window 512, stride 512, no BOS, first 5 windows``."""
        bos = "no BOS" if self.bos is None else f"BOS {self.bos}"
        some = "" if self.windows is None else f", first {self.windows} windows"
        return f"window {self.window}, stride {self.stride}, {bos}{some}"

    def cut(self, tokens: torch.Tensor) -> Iterator[Window]:
        """Windows over a text's tokens [T]; every token is scored at most once.

        Raises:
            RoofgapError: a text too short for one prediction.
        """
        lead = [] if self.bos is None else [self.bos]
        size = self.window - len(lead)
        step = min(self.stride, size)
        if len(tokens) + len(lead) < 2:
            raise RoofgapError(f"a text of {len(tokens)} tokens", "holds no prediction", "give a longer text")
        done, count = 0, 0
        for start in range(0, len(tokens), step):
            if self.windows is not None and count == self.windows:
                return
            end = min(start + size, len(tokens))
            # The first token given has nothing before it to be predicted from.
            first = max(done, start + 1 - len(lead))
            if end > first:
                given = torch.cat([tokens.new_tensor(lead), tokens[start:end]])
                yield Window(tokens=given, scored=end - first, first=first)
                count += 1
            done = end
            if end == len(tokens):
                return
