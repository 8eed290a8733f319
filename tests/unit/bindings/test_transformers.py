# SPDX-License-Identifier: Apache-2.0
"""attnsmith as a Transformers attention implementation, on tiny random models against eager attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0", reason="needs the extra `demo` (Transformers 5)")

from attnsmith.integrations import transformers as integration  # noqa: E402

NAME = integration.register()
IDS = torch.randint(1, 99, (2, 9), generator=torch.Generator().manual_seed(0))
SMALL: dict[str, Any] = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}


def bert() -> Any:
    return transformers.BertModel, transformers.BertConfig(**SMALL, num_attention_heads=2)


def llama() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM, config


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=64, n_layer=2, n_head=2, n_positions=64, attn_pdrop=0.5, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel, config


def mistral(window: int) -> Any:
    config = transformers.MistralConfig(
        **SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=window
    )
    return transformers.MistralForCausalLM, config


def pair(make: Callable[[], Any]) -> tuple[Any, Any]:
    """The same random bf16 model with eager attention and with ours, in eval mode."""
    cls, config = make()
    torch.manual_seed(0)
    eager = cls._from_config(copy.deepcopy(config), attn_implementation="eager", dtype=torch.bfloat16).eval()
    ours = cls._from_config(copy.deepcopy(config), attn_implementation=NAME, dtype=torch.bfloat16).eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == NAME
    return eager, ours


def first_output(model: Any, **inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs)[0]


@pytest.mark.parametrize("make", [bert, llama, gpt2, lambda: mistral(16)], ids=["bert", "llama", "gpt2", "mistral"])
@pytest.mark.parametrize("with_mask", [False, True], ids=["no-mask", "all-ones-mask"])
def test_equals_eager(make: Callable[[], Any], with_mask: bool) -> None:
    eager, ours = pair(make)
    inputs = {"input_ids": IDS, **({"attention_mask": torch.ones_like(IDS)} if with_mask else {})}
    torch.testing.assert_close(first_output(ours, **inputs), first_output(eager, **inputs), rtol=0, atol=0.03)


def test_encoder_sees_both_directions() -> None:
    _, ours = pair(bert)
    changed = IDS.clone()
    changed[:, -1] = 5
    a, b = first_output(ours, input_ids=IDS), first_output(ours, input_ids=changed)
    assert not torch.equal(a[:, 0], b[:, 0])


@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_decoder_sees_no_future(make: Callable[[], Any]) -> None:
    _, ours = pair(make)
    changed = IDS.clone()
    changed[:, 5:] = 7
    a, b = first_output(ours, input_ids=IDS), first_output(ours, input_ids=changed)
    assert torch.equal(a[:, :5], b[:, :5]) and not torch.equal(a[:, 5:], b[:, 5:])


@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_generation_with_a_cache_equals_eager(make: Callable[[], Any]) -> None:
    """The logits of each decoding step (1 query over all keys) against one eager pass over the generated tokens."""
    eager, ours = pair(make)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(IDS)}
    found = ours.generate(IDS, **options, output_logits=True, return_dict_in_generate=True)
    eager_logits = first_output(eager, input_ids=found.sequences)[:, IDS.shape[1] - 1 : -1]
    torch.testing.assert_close(torch.stack(found.logits, dim=1), eager_logits.float(), rtol=0, atol=0.03)


def test_prefill_in_chunks_equals_one_pass() -> None:
    """The second chunk has 4 queries over 9 keys: bottom-right causal."""
    _, ours = pair(llama)
    cache = transformers.DynamicCache(config=ours.config)
    with torch.no_grad():
        ours(IDS[:, :5], past_key_values=cache, use_cache=True)
        second = ours(IDS[:, 5:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(second, first_output(ours, input_ids=IDS)[:, 5:], rtol=0, atol=0.02)


def test_dropout_is_off_in_eval() -> None:
    _, ours = pair(gpt2)
    assert torch.equal(first_output(ours, input_ids=IDS), first_output(ours, input_ids=IDS))
    ours.train()
    with pytest.raises(NotImplementedError, match=r"dropout_p 0\.5"):
        ours(IDS)


@pytest.mark.parametrize("make", [bert, llama, gpt2], ids=["bert", "llama", "gpt2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_raises_and_says_what_to_do(make: Callable[[], Any], side: str) -> None:
    _, ours = pair(make)
    mask = torch.ones_like(IDS)
    mask[0, slice(0, 3) if side == "left" else slice(6, 9)] = 0
    with pytest.raises(NotImplementedError, match=r"equal length.*batch size 1"):
        first_output(ours, input_ids=IDS, attention_mask=mask)


def test_padding_raises_while_generating() -> None:
    _, ours = pair(llama)
    mask = torch.ones_like(IDS)
    mask[1, :2] = 0
    with pytest.raises(NotImplementedError, match="padded batch"):
        ours.generate(IDS, attention_mask=mask, max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize(
    "inputs,message",
    [
        ({"attention_mask": torch.zeros(2, 1, 9, 9)}, "attention_mask of shape"),
        ({"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), "use_cache": False}, "packed sequences"),
    ],
    ids=["4d-mask", "packed"],
)
def test_other_masks_raise(inputs: dict[str, Any], message: str) -> None:
    _, ours = pair(llama)
    with pytest.raises(NotImplementedError, match=message):
        first_output(ours, input_ids=IDS, **inputs)


def test_a_window_that_bites_raises() -> None:
    _, ours = pair(lambda: mistral(4))
    with pytest.raises(NotImplementedError, match="sliding window"):
        first_output(ours, input_ids=IDS)
    assert first_output(ours, input_ids=IDS[:, :4]).shape[1] == 4


def test_static_cache_raises() -> None:
    _, ours = pair(llama)
    with pytest.raises(NotImplementedError, match="cache"):
        ours.generate(IDS, max_new_tokens=4, do_sample=False, cache_implementation="static", pad_token_id=0)


def test_float32_model_is_told_to_use_half_precision() -> None:
    cls, config = bert()
    model = cls._from_config(config, attn_implementation=NAME, dtype=torch.float32).eval()
    with pytest.raises(TypeError, match="float32"):
        first_output(model, input_ids=IDS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert first_output(model, input_ids=IDS).shape == (2, 9, 64)


@pytest.mark.parametrize("kv_length,is_plain", [(9, True), (12, False)])
def test_mask_function_with_cache_position(kv_length: int, is_plain: bool) -> None:
    """4 queries after 5 tokens, over 9 keys or over a cache with 3 free slots."""
    from transformers.masking_utils import causal_mask_function

    options = {"kv_length": kv_length, "mask_function": causal_mask_function, "cache_position": torch.arange(5, 9)}
    if is_plain:
        assert integration.mask(batch_size=2, **options) is None
    else:
        with pytest.raises(NotImplementedError, match="cache"):
            integration.mask(batch_size=2, **options)


def test_a_custom_mask_function_counts_by_what_it_hides() -> None:
    def call(function: Callable[..., Any], **options: Any) -> None:
        integration.mask(batch_size=2, q_length=300, kv_length=300, mask_function=function, **options)

    call(lambda b, h, q, k: (k <= q) & (k > q - 300))
    with pytest.raises(NotImplementedError, match="custom mask"):
        call(lambda b, h, q, k: (k <= q) & (k > q - 299))
    with pytest.raises(NotImplementedError, match="custom mask"):
        call(lambda b, h, q, k: k >= 0)
    call(lambda b, h, q, k: k >= 0, allow_is_bidirectional_skip=True)
    with pytest.raises(NotImplementedError, match="custom mask"):
        call(lambda b, h, q, k: k <= q, allow_is_bidirectional_skip=True)


class _Layer(torch.nn.Module):
    """A layer as Transformers passes it."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.linear = torch.nn.Linear(2, 2, dtype=torch.bfloat16)


def test_layer_function_contract() -> None:
    """(b, h, s, d) in, (b, s, h, d) and None out; grouped heads, scaling, mixed float32 activations."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 3, 16), torch.randn(2, 2, 5, 16).bfloat16(), torch.randn(2, 2, 5, 16).bfloat16()
    layer = _Layer(is_causal=False).eval()
    out, weights = integration.attention(layer, q, k, v, None, dropout=0.5, scaling=0.3)
    ref = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), scale=0.3, enable_gqa=True
    )
    assert weights is None and out.shape == (2, 3, 4, 16) and out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), ref.transpose(1, 2), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "learnable_sink"),
        ({"sliding_window": 2}, "window"),
        ({"output_attentions": True}, "output_attentions"),
        ({"position_bias": torch.zeros(1, 4, 5, 5)}, "position_bias"),
        ({"cu_seq_lens_q": torch.zeros(2)}, "cu_seq_lens_q"),
    ],
)
def test_layer_function_refuses(options: dict[str, Any], message: str) -> None:
    x = torch.zeros(1, 4, 5, 16).bfloat16()
    with pytest.raises(NotImplementedError, match=message):
        integration.attention(_Layer(is_causal=True).eval(), x, x, x, None, **options)
