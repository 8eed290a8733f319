# SPDX-License-Identifier: Apache-2.0
"""Draws docs/figures/data_flow.svg: from a spec to a launched kernel. Run: python docs/figures/data_flow.py [FILE]"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

INK, GENERATE, COMPILE, RUN, DEVICE = "#1f2933", "#dbeafe", "#fde8c8", "#dcf3e1", "#eadcf7"


def box(axes: Axes, x: float, y: float, width: float, title: str, text: str, color: str, height: float = 1.0) -> None:
    """A rounded box around (x, y) with a bold title and smaller lines below."""
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0.02,rounding_size=0.12"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, fc=color, ec=INK, lw=1.1))
    lines = text.count("\n") + 1 if text else 0
    axes.text(x, y + 0.13 * lines, title, ha="center", va="center", fontsize=10.5, weight="bold", color=INK)
    if text:
        axes.text(x, y - 0.17, text, ha="center", va="center", fontsize=8.4, color=INK, linespacing=1.25)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], label: str = "", dx: float = 0.0) -> None:
    """An arrow with an optional label beside its middle."""
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.2})
    if label:
        x, y = (start[0] + end[0]) / 2 + dx, (start[1] + end[1]) / 2
        axes.text(x, y, label, fontsize=8.2, color=INK, ha="left" if dx > 0 else "right", va="center", style="italic")


def draw(axes: Axes) -> None:
    """The whole figure, on a plane of 12 x 9.3."""
    box(axes, 2.2, 8.6, 3.6, "what is asked", "dtype, head dims, mask, target\n(a call, or attnsmith build)", GENERATE)
    box(axes, 6.2, 8.6, 3.0, "tiles.py", "tile rows as data,\neach with its reason", GENERATE)
    box(axes, 10.0, 8.6, 3.5, "rules.py, resources.py", "legal? shared memory,\nregisters, occupancy", GENERATE)
    box(axes, 6.2, 7.0, 3.4, "KernelSpec", "ProblemKey + TileConfig,\nname derived from them", GENERATE)
    arrow(axes, (3.4, 8.1), (5.0, 7.55))
    arrow(axes, (6.2, 8.1), (6.2, 7.55))
    arrow(axes, (9.2, 8.1), (7.4, 7.55))
    box(axes, 6.2, 5.5, 4.4, "render()", "Jinja template + CuTe headers -> NAME.cu\n(device code only)", GENERATE)
    arrow(axes, (6.2, 6.5), (6.2, 6.05))
    box(axes, 3.0, 3.9, 3.9, "JIT: NVRTC", "one kernel, seconds, no toolkit;\ncubin + PTX in the cache", COMPILE)
    box(axes, 9.2, 3.9, 3.9, "AOT: nvcc + ninja", "a kernel set -> one library;\nattnsmith build --aot", COMPILE)
    arrow(axes, (5.2, 4.97), (3.7, 4.45))
    arrow(axes, (7.2, 4.97), (8.5, 4.45))
    text = "packed key -> kernels in order, with their\nimages; a miss compiles or raises"
    box(axes, 6.2, 2.3, 4.4, "dispatch table", text, RUN)
    arrow(axes, (3.7, 3.37), (5.2, 2.85))
    arrow(axes, (8.5, 3.37), (7.2, 2.85))
    box(axes, 1.75, 2.3, 2.9, "flash_attn_func", "SDPA, Transformers ->\ntorch.ops.attnsmith", RUN)
    arrow(axes, (3.25, 2.3), (3.95, 2.3))
    box(axes, 3.4, 0.65, 4.0, "CudaDevice", "CUDA tensors: the cubin,\nthrough the driver", DEVICE)
    text = "CPU tensors in attnsmith.simulate(...):\nthe same kernel's PTX, executed"
    box(axes, 9.0, 0.65, 4.6, "SimDevice (ptxsim)", text, DEVICE)
    arrow(axes, (5.3, 1.77), (3.9, 1.2), "launch", dx=-0.25)
    arrow(axes, (7.1, 1.77), (8.4, 1.2), "launch", dx=0.25)


def main() -> None:
    """Write the SVG (or any format that matplotlib knows by the file's suffix)."""
    default = Path(__file__).with_suffix(".svg")
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    mpl.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "attnsmith", "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(figsize=(9.6, 7.4))
    axes.set_xlim(0, 12)
    axes.set_ylim(0, 9.3)
    axes.axis("off")
    draw(axes)
    metadata = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(target, bbox_inches="tight", facecolor="white", metadata=metadata)


if __name__ == "__main__":
    main()
