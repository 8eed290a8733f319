# SPDX-License-Identifier: Apache-2.0
"""Rendering: golden sources per template family, purity, and what a template may not do. No compiler."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from attnsmith.codegen.dispatch import render_dispatch_header
from attnsmith.codegen.errors import UnsupportedError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.render import environment, render, template_context, template_dir, template_name
from attnsmith.codegen.resources import TARGETS, num_threads, smem_bytes
from attnsmith.codegen.spec import Arch, DType, Mask, Scheduler

GOLDEN = Path(__file__).parents[2] / "golden"

CASES = {
    "bf16-causal": {},
    "fp16-full-two-stages": {"dtype": DType.FP16, "mask": Mask.FULL, "num_stages": 2},
    "bf16-causal-pads-head-dim": {"head_dim": 64, "head_dim_v": 96, "pads_head_dim": True},
}

SM90_CASES = {
    "sm90-bf16-causal": {},
    "sm90-e4m3-full": {"dtype": DType.E4M3, "mask": Mask.FULL, "scheduler": Scheduler.STATIC, "block_n": 224},
    "sm90-fp16-full-p-in-smem": {
        "dtype": DType.FP16, "mask": Mask.FULL, "scheduler": Scheduler.STATIC, "head_dim": 96, "head_dim_v": 96,
        "block_m": 192, "block_n": 144, "num_warps": 12, "p_in_smem": True,
    },
}  # fmt: skip


@pytest.fixture
def golden_specs(make_spec, make_sm90_spec):
    """Case -> its spec, of both families."""
    sm80 = {case: make_spec(**changes) for case, changes in CASES.items()}
    return sm80 | {case: make_sm90_spec(**changes) for case, changes in SM90_CASES.items()}


def assert_golden(name: str, text: str, update: bool) -> None:
    """`text` equals tests/golden/NAME; with --update-golden the file is rewritten first."""
    path = GOLDEN / name
    if update:
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{name}: run pytest tests/unit/codegen --update-golden and review the diff"
    assert text == path.read_text(encoding="utf-8"), f"{name}: --update-golden rewrites it, if the change is meant"


@pytest.mark.parametrize("case", [*CASES, *SM90_CASES])
def test_golden_kernel(golden_specs, update_golden, case):
    spec = golden_specs[case]
    assert_golden(f"{spec.name}.cu", render(spec), update_golden)


def test_golden_dispatch_header(update_golden):
    assert_golden("dispatch_table.inc", render_dispatch_header(), update_golden)


def test_no_golden_file_is_left_over(golden_specs):
    used = {f"{spec.name}.cu" for spec in golden_specs.values()} | {"dispatch_table.inc"}
    assert {path.name for path in GOLDEN.iterdir() if path.suffix in (".cu", ".inc")} == used


def test_every_template_family_has_a_golden_case(golden_specs):
    families = {template_name(spec.key.op, spec.key.arch) for spec in golden_specs.values()}
    assert families == {path.name for path in template_dir().glob("*.cu.j2")}


SPECS = sorted({spec for target in TARGETS for spec in kernel_set("full", target)}, key=lambda spec: spec.name)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_kernel_renders_one_named_symbol(spec):
    text = render(spec)
    assert text.startswith("//") and text.endswith("\n")
    assert re.search(rf'extern "C" __global__ void[^{{;]*\b{spec.name}\(', text)
    assert f"== {smem_bytes(spec)}" in text, "the static_assert of SharedStorage"
    assert f"__launch_bounds__({num_threads(spec)}" in text
    assert not re.search(r"\{\{ |\{% | %\}| \}\}", text), "a template's own syntax"
    assert "torch" not in text


def test_sources_do_not_depend_on_process_or_hash_seed(make_spec):
    code = (
        "from attnsmith.codegen.registry import kernel_set\n"
        "from attnsmith.codegen.render import render\n"
        "import hashlib\n"
        "print(hashlib.sha256(''.join(map(render, kernel_set('full', 'sm_80'))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_sm90_templates_see_registers_and_warpgroups(make_sm90_spec):
    context = template_context(make_sm90_spec(dtype=DType.E4M3))
    assert (context["producer_registers"], context["consumer_registers"], context["entry_registers"]) == (40, 232, 168)
    assert (context["num_consumer_warpgroups"], context["min_ctas_per_sm"], context["transposes_v"]) == (2, 1, True)
    assert context["Scheduler"] is Scheduler


def test_sm80_templates_do_not_see_sm90s_names(make_spec):
    assert "consumer_registers" not in template_context(make_spec())


def test_an_undefined_name_in_a_template_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ spec.no_such_field }}").render(template_context(SPECS[0]))
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{% if no_such_name %}{% endif %}").render(template_context(SPECS[0]))


def test_a_family_without_a_template_names_those_that_have_one(make_spec, monkeypatch):
    monkeypatch.setattr("attnsmith.codegen.render.has_template", lambda op, arch: arch is Arch.SM80)
    with pytest.raises(UnsupportedError, match="allowed: sm80"):
        render(make_spec(arch=Arch.SM90))
