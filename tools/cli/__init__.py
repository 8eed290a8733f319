# SPDX-License-Identifier: Apache-2.0
"""The `attnsmith` command: a group whose commands are imported only when they run, and its exit codes.

0 success, 1 a check failed, 2 the user's mistake (`error: ...` on stderr, no traceback), 130 interrupted.
Not responsible for any command: each lives in its module here and exports `command`.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import Any

import click

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class LazyCommand:
    """Where a command lives, and its line in --help, known without importing it."""

    module: str
    help: str


COMMANDS: dict[str, LazyCommand] = {
    "demo": LazyCommand("attnsmith.tools.cli.demo", "Encode sentences with a real model through attnsmith kernels."),
    "list": LazyCommand("attnsmith.tools.cli.list", "List the kernels of a set with their resources."),
    "generate": LazyCommand("attnsmith.tools.cli.generate", "Render kernel sources."),
    "build": LazyCommand("attnsmith.tools.cli.build", "Compile kernels, one by one or as a library."),
    "explain": LazyCommand("attnsmith.tools.cli.explain", "Say which kernel serves a problem, and why."),
    "inspect": LazyCommand("attnsmith.tools.cli.inspect", "Show registers, spills, shared memory and SASS of kernels."),
    "check": LazyCommand("attnsmith.tools.cli.check", "Compare with the reference on a GPU or a simulated one."),
    "sim": LazyCommand("attnsmith.tools.cli.sim", "Look into a PTX file with the GPU simulator."),
    "gpu-check": LazyCommand("attnsmith.tools.cli.gpu_check", "Check and time everything on the GPU at hand."),
    "doctor": LazyCommand("attnsmith.tools.cli.doctor", "Say what was found, what is missing and what to do."),
    "clean": LazyCommand("attnsmith.tools.cli.clean", "Remove cached kernels and builds."),
}


class _EchoHandler(logging.Handler):
    """Log records as lines on stderr, so that stdout carries results alone."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


def _log_to_stderr(level: int) -> None:
    logger = logging.getLogger("attnsmith")
    if not any(isinstance(handler, _EchoHandler) for handler in logger.handlers):
        logger.addHandler(_EchoHandler())
    logger.setLevel(level)


class LazyGroup(click.Group):
    """Commands by name from COMMANDS, imported on use; errors that a user can act on become one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(entry.module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help lines from COMMANDS: no command is imported for them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; AttnsmithError and an interrupt end it with their exit codes."""
        from attnsmith.codegen.errors import AttnsmithError

        try:
            return super().invoke(ctx)
        except AttnsmithError as error:
            if logging.getLogger("attnsmith").isEnabledFor(logging.DEBUG):
                raise
            click.echo(f"error: {error}", err=True)
            ctx.exit(EXIT_USER_ERROR)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="attnsmith", prog_name="attnsmith", message="%(prog)s %(version)s")
@click.option("-q", "--quiet", is_flag=True, help="No progress messages, only results and errors.")
@click.option("--debug", is_flag=True, help="More messages, and a traceback for every error.")
def main(quiet: bool, debug: bool) -> None:
    """Generate, build, check and run FlashAttention kernels, with or without a GPU."""
    _log_to_stderr(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)
