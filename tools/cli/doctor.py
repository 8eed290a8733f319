# SPDX-License-Identifier: Apache-2.0
"""`attnsmith doctor`: prints what tools/doctor.py found."""

from __future__ import annotations

import json
from typing import Any

import click

EXIT_UNUSABLE = 1


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="A JSON object: ok, and one finding per part.")
def command(as_json: bool) -> None:
    """Say what was found, what is missing and what to do.

    Exit status 0 where kernels can be compiled and simulated on this machine, else 1.
    """
    from attnsmith.tools.doctor import diagnose

    diagnosis = diagnose()
    click.echo(json.dumps(diagnosis.to_dict(), indent=2) if as_json else _text(diagnosis))
    if not diagnosis.ok:
        raise click.exceptions.Exit(EXIT_UNUSABLE)


def _text(diagnosis: Any) -> str:
    width = max(len(finding.part) for finding in diagnosis.findings)
    lines = []
    for finding in diagnosis.findings:
        mark = "ok     " if finding.ok else "MISSING" if finding.is_required else "no     "
        lines.append(f"{mark}  {finding.part:<{width}}  {finding.found}")
        if not finding.ok:
            lines.append(f"{'':>{9 + width}}  needed for {finding.needed_for}. {finding.do}")
    verdict = (
        "kernels can be compiled and simulated here" if diagnosis.ok else "something required is missing, see above"
    )
    return "\n".join([*lines, "", verdict])
