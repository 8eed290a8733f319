# SPDX-License-Identifier: Apache-2.0
"""`attnsmith clean`: empties the cache, or the part of it that is old or was left by builds that died."""

from __future__ import annotations

import json
from typing import Any

import click

SECONDS_PER_DAY = 24 * 3600


@click.command("clean")
@click.option("--older-than", "days", type=click.FloatRange(min=0), default=0.0, metavar="DAYS",
              help="Keep what was built in the last DAYS days; default: keep nothing.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Remove nothing, show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object: the cache, removed paths and bytes.")
def command(days: float, dry_run: bool, as_json: bool) -> None:
    """Remove cached kernels, libraries, sources of failed builds, and leftovers of builds that died.

    Running builds keep what they are writing. Everything removed is rebuilt when it is needed.
    """
    from attnsmith.codegen.cache import clean_root, default_root

    root = default_root()
    reports = clean_root(root, days * SECONDS_PER_DAY, dry_run)
    result: dict[str, Any] = {
        "root": str(root),
        "dry_run": dry_run,
        "removed": [str(path) for report in reports for path in report.removed],
        "bytes": sum(report.num_bytes for report in reports),
    }
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    for path in result["removed"]:
        click.echo(path)
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{len(result['removed'])} items, {result['bytes'] / 1e6:.1f} MB {verb} from {result['root']}", err=True)
