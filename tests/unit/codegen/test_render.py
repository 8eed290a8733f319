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
from attnsmith.codegen.render import environment, has_template, render, template_context, template_dir, template_name
from attnsmith.codegen.resources import TARGETS, num_threads, smem_bytes
from attnsmith.codegen.spec import Arch, DType, Mask, Op

GOLDEN = Path(__file__).parents[2] / "golden"

CASES = {
    "bf16-causal": {},
    "fp16-full-two-stages": {"dtype": DType.FP16, "mask": Mask.FULL, "num_stages": 2},
    "bf16-causal-pads-head-dim": {"head_dim": 64, "head_dim_v": 96, "pads_head_dim": True},
}


def assert_golden(name: str, text: str, update: bool) -> None:
    """`text` equals tests/golden/NAME; with --update-golden the file is rewritten first."""
    path = GOLDEN / name
    if update:
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{name}: run pytest tests/unit/codegen --update-golden and review the diff"
    assert text == path.read_text(encoding="utf-8"), f"{name}: --update-golden rewrites it, if the change is meant"


@pytest.mark.parametrize("case", CASES)
def test_golden_kernel(make_spec, update_golden, case):
    spec = make_spec(**CASES[case])
    assert_golden(f"{spec.name}.cu", render(spec), update_golden)


def test_golden_dispatch_header(update_golden):
    assert_golden("dispatch_table.inc", render_dispatch_header(), update_golden)


def test_no_golden_file_is_left_over(make_spec):
    used = {f"{make_spec(**changes).name}.cu" for changes in CASES.values()} | {"dispatch_table.inc"}
    assert {path.name for path in GOLDEN.iterdir() if path.suffix in (".cu", ".inc")} == used


def test_every_template_family_has_a_golden_case(make_spec):
    families = {template_name(make_spec(**changes).key.op, make_spec(**changes).key.arch) for changes in CASES.values()}
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


def test_an_undefined_name_in_a_template_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ spec.no_such_field }}").render(template_context(SPECS[0]))
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{% if no_such_name %}{% endif %}").render(template_context(SPECS[0]))


def test_a_family_without_a_template_names_those_that_have_one(make_spec):
    if has_template(Op.FWD, Arch.SM90):
        pytest.skip("every arch has a template")
    with pytest.raises(UnsupportedError, match="allowed: sm80"):
        render(make_spec(arch=Arch.SM90))
