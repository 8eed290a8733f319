# SPDX-License-Identifier: Apache-2.0
"""The command group, `attnsmith list` and `attnsmith generate`: output, exit codes and errors without tracebacks."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from attnsmith.codegen.errors import AttnsmithError
from attnsmith.codegen.registry import kernel_set
from attnsmith.codegen.spec import KernelSpec, ProblemKey, TileConfig
from attnsmith.tools import cli
from click.testing import CliRunner


def run(*arguments: str):
    """Invoke `attnsmith` in this process."""
    return CliRunner().invoke(cli.main, list(arguments))


def run_process(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `attnsmith` as a process with a scrubbed environment: no GPU, no nvcc, no HOME."""
    scrubbed = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": "", **env}
    command = [sys.executable, "-m", "attnsmith.tools.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=scrubbed, timeout=60)


def test_help_lists_every_command_without_importing_it():
    code = (
        "import sys\n"
        "from attnsmith.tools.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "loaded = set(sys.modules)\n"
        "assert not loaded & {'torch', 'jinja2', 'numpy', 'triton'}, loaded\n"
        "assert not [name for name in loaded if name.startswith('attnsmith.tools.cli.')]\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for name, entry in cli.COMMANDS.items():
        assert name in result.stdout and entry.help[:40] in result.stdout


def test_commands_are_the_fixed_names():
    assert set(cli.COMMANDS) == {
        "list", "generate", "build", "explain", "inspect", "check", "demo", "doctor", "clean", "sim", "gpu-check",
    }  # fmt: skip


def test_version_is_the_packages():
    assert run("--version").output == f"attnsmith {importlib.metadata.version('attnsmith')}\n"


def test_unknown_command_and_option_are_usage_errors():
    assert run("no-such-command").exit_code == 2
    assert run("list", "--no-such-option").exit_code == 2


@pytest.fixture
def fake_command(monkeypatch):
    """A command `fake` that raises what it is told to."""

    def install(error: BaseException) -> None:
        @click.command("fake")
        def command() -> None:
            raise error

        module = type(sys)("attnsmith_fake_command")
        module.command = command
        monkeypatch.setitem(sys.modules, "attnsmith_fake_command", module)
        monkeypatch.setitem(cli.COMMANDS, "fake", cli.LazyCommand("attnsmith_fake_command", "Fails."))

    return install


def test_a_users_mistake_is_one_line_and_exit_2(fake_command):
    fake_command(AttnsmithError(asked="a", got="b", allowed="c", do="Do d."))
    result = run("fake")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: a: got b; allowed: c. Do d.\n"
    assert isinstance(run("--debug", "fake").exception, AttnsmithError)


def test_an_interrupt_is_exit_130(fake_command):
    fake_command(KeyboardInterrupt())
    result = run("fake")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_a_defect_keeps_its_traceback(fake_command):
    fake_command(RuntimeError("defect"))
    assert isinstance(run("fake").exception, RuntimeError)


def test_list_json_has_every_spec_field_and_the_resources():
    rows = json.loads(run("list", "--set", "default", "--json").stdout)
    assert [KernelSpec.from_dict(row) for row in rows] == list(kernel_set("default", "sm_80"))
    wanted = {field.name for cls in (ProblemKey, TileConfig) for field in fields(cls)}
    wanted |= {"name", "target", "smem_bytes", "register_estimate", "num_threads", "occupancy", "reason"}
    assert all(wanted <= set(row) for row in rows)


def test_list_table_has_one_line_per_kernel():
    result = run("list", "--set", "minimal", "--target", "8.6")
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["kernel", "smem"]
    assert [line.split()[0] for line in lines[1:]] == [spec.name for spec in kernel_set("minimal", "sm_86")]
    assert "8 kernels for sm_86" in result.stderr


def test_generate_writes_and_check_agrees(tmp_path):
    out = tmp_path / "with space" / "out"
    result = run("generate", "--set", "minimal", "--out", str(out))
    assert result.exit_code == 0
    assert result.stdout.split("\n")[:-1] == [str(out / f"{s.name}.cu") for s in kernel_set("minimal", "sm_80")]
    assert run("generate", "--set", "minimal", "--out", str(out), "--check").exit_code == 0


def test_generate_check_exits_1_and_names_the_difference(tmp_path):
    run("generate", "--set", "minimal", "--out", str(tmp_path))
    changed = next(tmp_path.glob("*.cu"))
    changed.write_text(changed.read_text() + "\n")
    result = run("generate", "--set", "minimal", "--out", str(tmp_path), "--check")
    assert (result.exit_code, result.stdout) == (1, f"{changed.name}: differs\n")
    result = run("generate", "--set", "minimal", "--out", str(tmp_path), "--check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["differences"] == {changed.name: "differs"}
    assert changed.read_text().endswith("\n\n"), "--check writes nothing"


def test_generate_json_names_files_that_exist(tmp_path):
    result = run("generate", "--head-dim", "64", "--dtype", "fp16", "--out", str(tmp_path), "--json")
    data = json.loads(result.stdout)
    assert data["kernels"] and all(Path(row["file"]).is_file() for row in data["kernels"])


MISTAKES = {
    "fp8": (["--dtype", "e4m3"], "SM80 has no FP8 MMA"),
    "dtype": (["--dtype", "fp32"], "allowed: fp16, bf16"),
    "arch": (["--arch", "sm_70"], "allowed: sm_80"),
    "arch-list": (["--arch", "bogus"], "'bogus'"),
    "suffix": (["--arch", "sm80a"], "Use sm_80."),
    "sm90-option": (["--scheduler", "static"], "need SM90"),
    "scheduler": (["--scheduler", "greedy"], "single, static, dynamic"),
    "ping-pong": (["--arch", "sm_90a", "--block-m", "64", "--num-warps", "4"], "is_ping_pong with 4"),
    "out-dtype": (["--arch", "sm_90a", "--dtype", "fp16", "--out-dtype", "bf16"], "allowed: fp16"),
    "head-dim": (["--head-dim", "300"], "allowed: 1 to 256"),
    "mask": (["--mask", "diagonal"], "allowed: full, causal"),
    "stages": (["--num-stages", "0"], "too few stages"),
    "smem": (["--head-dim", "256", "--num-stages", "4"], "B of shared memory"),
    "block-m": (["--block-m", "100"], "rows per warp"),
    "block-n": (["--block-n", "20"], "multiples of 16"),
    "set": (["--set", "huge"], "minimal, default, full"),
}


@pytest.mark.parametrize("command", ["list", "generate"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_is_one_clear_line(tmp_path, command, mistake):
    arguments, words = MISTAKES[mistake]
    out = ["--out", str(tmp_path / "out")] if command == "generate" else []
    result = run(command, *arguments, *out)
    assert result.exit_code == 2
    assert result.stdout == "" and words in result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def listed(*arguments: str) -> list[dict[str, object]]:
    """The rows of `attnsmith list --json` for sm_90a."""
    result = run("list", "--arch", "sm_90a", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def test_sm90_options_change_the_best_tile_and_the_key():
    options = ["--scheduler", "single", "--no-ping-pong", "--no-overlap", "--p-in-smem", "--no-skip-rescale"]
    problem = ["--dtype", "fp16", "--head-dim", "64", "--mask", "full", "--pack-gqa"]
    (row,) = listed(*problem, *options, "--cluster-size", "2", "--exp2-fma-eighths", "3")
    assert row["name"] == "fwd_sm90_fp16_hdim64_full_packgqa_192x128_w12_s2_c2_psmem_rescale_fma3"
    (first, *_) = listed("--dtype", "e4m3", "--head-dim", "128", "--out-dtype", "fp16", "--v-col-major")
    assert (first["out_dtype"], first["v_is_col_major"], first["block_n"]) == ("fp16", True, 128)


def test_sm90_options_choose_from_a_set():
    assert {row["packs_gqa"] for row in listed("--set", "full", "--pack-gqa")} == {True}
    assert {row["scheduler"] for row in listed("--set", "default", "--scheduler", "dynamic")} == {"dynamic"}


def test_out_that_cannot_be_written_is_a_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("generate", "--set", "minimal", "--out", str(tmp_path / "file"))
    assert result.exit_code == 2 and "--out" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["list", "--help"], ["generate", "--help"], ["list"]])
def test_informational_commands_need_nothing(arguments):
    """CLI-01: no GPU, no nvcc, no HOME."""
    result = run_process(*arguments)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr and result.stdout


def test_generate_needs_no_toolkit(tmp_path):
    """BLD-03: generate works without CUDA."""
    result = run_process("generate", "--set", "minimal", "--out", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "out").glob("*.cu"))) == 8


def test_errors_of_a_process_have_no_traceback():
    result = run_process("list", "--head-dim", "300")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and "Traceback" not in result.stderr


def test_output_into_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m attnsmith.tools.cli list --set full --json | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ))
    assert result.stdout == "[\n" and "Traceback" not in result.stderr
