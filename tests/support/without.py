"""An environment that lacks one package of ours: a real one, by links to what is installed here."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def environment_without(package: str, folder: Path) -> str:
    """Its interpreter. The programs that are beside ours are beside it too."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for entry in map(Path, sys.path):
        if any(entry.glob("*.dist-info")):
            _link(entry, site, package)
    ours = Path(sys.executable).parent
    for name in ("agent", "coordinator"):
        first, _, rest = (ours / name).read_text().partition("\n")
        assert first.startswith("#!")
        (folder / "bin" / name).write_text(f"#!{python}\n{rest}")
        (folder / "bin" / name).chmod(0o755)
    return str(python)


def _link(entry: Path, site: Path, package: str) -> None:
    for path in entry.iterdir():
        name = path.name.partition("-")[0].partition(".")[0]
        leads_there = path.suffix == ".pth" and not path.read_text().startswith("import ")
        if name != package and not leads_there and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
