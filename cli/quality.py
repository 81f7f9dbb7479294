"""``roofgap quality``: what 4 bits cost a model on a text, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roofgap.cli.output import print_json, print_table

_SHOWN = (
    "text",
    "ppl",
    "reference_ppl",
    "delta_nll",
    "delta_nll_se",
    "kl",
    "top1",
    "bits_per_byte",
    "n_tokens",
)


def quality(
    weights: Annotated[
        str,
        typer.Argument(help="smollm2, a Hugging Face folder or a .gguf: real weights with their tokenizer."),
    ] = "smollm2",
    *,
    text: Annotated[
        str, typer.Option(help="probe (the committed text), prose, technical, code, pydoc, or a file.")
    ] = "probe",
    group_size: Annotated[int, typer.Option(help="Weights per scale; -1 for the whole row.")] = 64,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Symmetric codes instead of asymmetric.")
    ] = False,
    window: Annotated[int, typer.Option(help="Tokens given at a time.")] = 512,
    stride: Annotated[int | None, typer.Option(help="Tokens between windows; default: the window.")] = None,
    bos: Annotated[int | None, typer.Option(help="Token in front of every window; default: none.")] = None,
    windows: Annotated[int | None, typer.Option(help="At most this many; default: the whole text.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Round all linears to nearest at 4 bits and compare with the weights as they come, in fp32. Takes minutes."""
    from roofgap.e2e.quality.evaluate import load_tokens, record, rtn_cost
    from roofgap.e2e.quality.protocol import Protocol
    from roofgap.e2e.quality.text import probe, pydoc_topics, read_text
    from roofgap.e2e.sources import open_source

    protocol = Protocol(window=window, stride=stride or window, bos=bos, windows=windows)
    if text == "pydoc":
        chosen = pydoc_topics()
    elif text in ("prose", "technical", "code"):
        chosen = probe(text)
    else:
        chosen = probe() if text == "probe" else read_text(Path(text))
    source = open_source("model", weights)
    tokens = load_tokens(source, chosen)
    found = rtn_cost(source, tokens, protocol, group_size=group_size, symmetric=symmetric)
    scheme = f"RTN {'sym' if symmetric else 'asym'} g{group_size}, linears without the head, fp32 forward"
    row = record(found, source, tokens, protocol, scheme)
    if as_json:
        print_json(row)
        return
    title = f"{row['model']} ({row['reference']}); {scheme}; {protocol.label}; sha256 {chosen.sha256[:12]}"
    print_table([row], _SHOWN, title=title)
