# SPDX-License-Identifier: Apache-2.0
"""attnsmith as an attention implementation of Transformers: `register()`, then attn_implementation="attnsmith".

Registers the attention function *and* the mask function: for an implementation whose mask function it does not know,
Transformers passes attention_mask=None and padding is attended to. What the kernels of this version cannot mask raises.
Not responsible for computing attention (attnsmith.flash_attn_func).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attnsmith.errors import UnsupportedError
from attnsmith.interface import flash_attn_func
from torch import Tensor

MAX_EVALUATED_MASK = 1 << 24
"""Up to this many (query, key) pairs, an unknown mask function is evaluated to see whether it is plain."""

_EVALUATED_ROWS = 256


def register(name: str = "attnsmith") -> str:
    """Makes `attn_implementation=name` available to every Transformers model of this process; returns the name.

    Raises:
        ImportError: Transformers is missing or older than 5.0.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            f"register attnsmith with Transformers: got {error}; allowed: transformers 5.0 or newer. "
            "Run `pip install 'attnsmith[demo]'`."
        ) from error
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    return name


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, with the signature that Transformers calls.

    Args:
        module: the layer; its `is_causal` counts where `is_causal` is None, its `training` decides about dropout.
        query: (b, h, sq, d); key (b, hk, sk, d); value (b, hk, sk, dv). A causal layer with a cache (sq < sk) is
            bottom-right aligned.
        attention_mask: None, or the call raises: `mask` returns None for everything that the kernels can do.
        scaling: softmax scale; None is d ** -0.5.
        sliding_window: keys that a row sees, itself included.

    Returns:
        ((b, sq, h, dv), None).

    Raises:
        NotImplementedError: a mask, bias, window, softcap, sink or dropout that this version does not have.
        TypeError: a model in float32; load it with dtype=torch.bfloat16.
    """
    _refuse(attention_mask, kwargs)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    q, k, v = _half_precision(module, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    reach = -1 if sliding_window is None else sliding_window - 1
    out = flash_attn_func(
        q,
        k,
        v,
        dropout_p=dropout if module.training else 0.0,
        softmax_scale=scaling,
        causal=causal,
        window_size=(reach, 0 if causal else reach),
        softcap=softcap or 0.0,
        learnable_sink=s_aux,
    )
    return out, None


def _refuse(attention_mask: Tensor | None, kwargs: dict[str, Any]) -> None:
    """Raises for what would change the result and cannot be done."""
    if attention_mask is not None:
        raise UnsupportedError(
            asked="attention with an explicit attention_mask",
            got=f"attention_mask of shape {tuple(attention_mask.shape)}",
            allowed="no mask beyond causal or full in this version",
            do='Pass equal-length sequences without a 4-D mask, or use attn_implementation="sdpa".',
        )
    for name in ("position_bias", "cu_seq_lens_q", "cu_seq_lens_k", "block_table"):
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                asked=f"attention with {name}", got=f"{name} of type {type(kwargs[name]).__name__}",
                allowed=f"no {name} in this version", do='Use attn_implementation="sdpa" for this model.',
            )  # fmt: skip
    if kwargs.get("output_attentions"):
        raise UnsupportedError(
            asked="attention with output_attentions=True", got="a request for the attention weights",
            allowed="outputs only: the weights are never stored", do='Use attn_implementation="eager".',
        )  # fmt: skip


def _half_precision(module: torch.nn.Module, *tensors: Tensor) -> list[Tensor]:
    """float32 activations of a half-precision model (norms in float32, adapters) cast to its weights' dtype."""
    if all(x.dtype == tensors[-1].dtype and x.dtype != torch.float32 for x in tensors):
        return list(tensors)
    weights = (layer.weight.dtype for layer in module.modules() if isinstance(layer, torch.nn.Linear))
    dtype = next(weights, torch.float32)
    if dtype not in (torch.float16, torch.bfloat16):
        return list(tensors)
    return [x.to(dtype) if x.dtype == torch.float32 else x for x in tensors]


def mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> None:
    """Transformers' mask hook: None where causal or full attention is all there is to it, an error elsewhere.

    A Transformers that passes `cache_position` (the position of each query) instead of q_length and q_offset is served
    too.

    Raises:
        NotImplementedError: padding, packed sequences, sliding windows that bite, a static cache, custom masks.
    """
    _refuse_padding(attention_mask, kv_length, kv_offset)
    if q_length is None:
        positions = kwargs["cache_position"]
        q_length, q_offset = len(positions), positions[0]
    if mask_function is None:
        return
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if mask_function is bidirectional_mask_function:
        return
    is_bidirectional = "allow_is_bidirectional_skip" in kwargs
    if mask_function is not causal_mask_function and not _is_plain(
        mask_function, batch_size, q_length, kv_length, int(q_offset), kv_offset, use_vmap, is_bidirectional
    ):
        raise UnsupportedError(
            asked="attention with the mask of this model", got="packed sequences, a sliding window or a custom mask",
            allowed="masks that equal the causal or the full mask, in this version",
            do='Shorten the input to the window, pass one sequence per row, or use attn_implementation="sdpa".',
        )  # fmt: skip
    if not is_bidirectional and int(q_offset) - kv_offset != kv_length - q_length:
        raise UnsupportedError(
            asked="causal attention over a cache with room for later tokens",
            got=f"{kv_length} cache slots for {int(q_offset) + q_length} tokens",
            allowed="a cache that ends with the newest token", do="Use the default (dynamic) cache.",
        )  # fmt: skip


def _refuse_padding(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> None:
    if attention_mask is None:
        return
    visible = attention_mask[:, kv_offset : kv_offset + kv_length] if attention_mask.dim() == 2 else attention_mask
    if attention_mask.dim() == 2 and visible.shape[1] == kv_length and bool(visible.all()):
        return
    raise UnsupportedError(
        asked="attention over a padded batch",
        got=f"attention_mask of shape {tuple(attention_mask.shape)} with padding",
        allowed="batches without padding in this version",
        do="Batch sequences of equal length, or pass them one by one (batch size 1).",
    )  # fmt: skip


def _is_plain(
    mask_function: Callable[..., Any],
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    use_vmap: bool,
    is_bidirectional: bool,
) -> bool:
    """Whether a mask function hides exactly what the causal mask hides; nothing, for a bidirectional model.

    Evaluated in blocks of rows.
    """
    if use_vmap or batch_size * q_length * kv_length > MAX_EVALUATED_MASK:
        return False
    batch = torch.arange(batch_size)[:, None, None, None]
    keys = torch.arange(kv_offset, kv_offset + kv_length)
    for start in range(0, q_length, _EVALUATED_ROWS):
        rows = torch.arange(start, min(start + _EVALUATED_ROWS, q_length))[:, None] + q_offset
        seen = mask_function(batch, torch.zeros(1, 1, 1, 1, dtype=torch.int64), rows, keys)
        wanted = torch.ones_like(keys <= rows) if is_bidirectional else keys <= rows
        if not bool((seen == wanted).all()):
            return False
    return True
