# SPDX-License-Identifier: Apache-2.0
"""Failures that people reported of attention implementations inside Transformers, on tiny models with random weights.

No kernel runs: CPU tensors outside a simulation get the reference. What this version's kernels cannot mask must raise.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnsmith.integrations.transformers import register
from torch import Tensor

transformers = pytest.importorskip("transformers", reason="the demo extra is not installed")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def llama(attention: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, attn_implementation=attention, **changes)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def bert(attention: str) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, attn_implementation=attention)
    return transformers.BertModel(config).to(torch.bfloat16).eval()


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(1))


def assert_same_logits(ours: Tensor, theirs: Tensor) -> None:
    """bf16 models: two roundings of logits around 1."""
    assert (ours.float() - theirs.float()).abs().max() < 2e-2


def test_hf_05_causal_model_equals_eager() -> None:
    ids = tokens(2, 9)
    with torch.no_grad():
        assert_same_logits(llama("attnsmith")(ids).logits, llama("eager")(ids).logits)


def test_hf_05_a_later_token_changes_no_earlier_row() -> None:
    ids = tokens(1, 9)
    changed = ids.clone()
    changed[:, 6:] = 3
    model = llama("attnsmith")
    with torch.no_grad():
        assert torch.equal(model(ids).logits[:, :6], model(changed).logits[:, :6])


def test_hf_05_bidirectional_model_equals_eager() -> None:
    ids = tokens(2, 9)
    with torch.no_grad():
        ours, theirs = bert("attnsmith")(ids).last_hidden_state, bert("eager")(ids).last_hidden_state
    assert (ours.float() - theirs.float()).abs().max() < 5e-2


@pytest.mark.parametrize("build", [llama, bert], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_hf_05_padding_raises_and_says_what_to_do(build: Any, side: str) -> None:
    ids, mask = tokens(2, 5), torch.ones(2, 5, dtype=torch.long)
    mask[1, slice(0, 2) if side == "left" else slice(3, 5)] = 0
    with torch.no_grad(), pytest.raises(NotImplementedError, match=r"padding.*one by one"):
        build("attnsmith")(ids, attention_mask=mask)


def test_hf_05_an_attention_mask_without_padding_is_fine() -> None:
    ids = tokens(2, 5)
    model = llama("attnsmith")
    with torch.no_grad():
        assert torch.equal(model(ids, attention_mask=torch.ones_like(ids)).logits, model(ids).logits)


def test_hf_05_a_four_dimensional_mask_raises() -> None:
    ids = tokens(1, 5)
    with torch.no_grad(), pytest.raises(NotImplementedError):
        llama("attnsmith")(ids, attention_mask=torch.zeros(1, 1, 5, 5, dtype=torch.bfloat16))


def test_hf_04_a_continuation_chunk_equals_one_shot_prefill() -> None:
    ids = tokens(1, 12)
    model = llama("attnsmith")
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :8], use_cache=True)
        rest = model(ids[:, 8:], past_key_values=first.past_key_values, position_ids=torch.arange(8, 12)[None])
    assert_same_logits(first.logits, whole[:, :8])
    assert_same_logits(rest.logits, whole[:, 8:])


def test_hf_04_steps_with_a_cache_equal_eager() -> None:
    ids = tokens(1, 11)
    last: dict[str, Tensor] = {}
    for name in ("attnsmith", "eager"):
        model, cache = llama(name), transformers.DynamicCache()
        with torch.no_grad():
            model(ids[:, :6], past_key_values=cache)
            steps = [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(6, 11)]
        last[name] = torch.cat(steps, dim=1)
    assert_same_logits(last["attnsmith"], last["eager"])


def test_hf_08_dropout_is_off_in_eval() -> None:
    ids = tokens(1, 9)
    with torch.no_grad():
        model = llama("attnsmith", attention_dropout=0.5)
        first, second = model(ids).logits, model(ids).logits
        assert torch.equal(first, second)
        assert torch.equal(first, llama("attnsmith")(ids).logits)


def test_hf_08_dropout_in_training_is_refused_not_ignored() -> None:
    with pytest.raises(NotImplementedError, match="dropout"):
        llama("attnsmith", attention_dropout=0.5).train()(tokens(1, 9))


def test_int_01_a_model_in_fp32_is_refused_with_its_dtype() -> None:
    with torch.no_grad(), pytest.raises(TypeError, match="float32"):
        llama("attnsmith").float()(tokens(1, 5))
