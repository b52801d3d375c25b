"""Fails if a base install downloads or unpacks more than its bound: builds or downloads the wheels of Calque and its base dependencies and
adds up their files, in MiB (2^20 bytes, what `du -m` counts). Bytecode that pip compiles after unpacking is not counted.

Usage: python .ci/size.py FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

DOWNLOAD, INSTALLED = 80, 230


def main(folder: Path) -> int:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--wheel-dir", str(folder), "."], check=True)
    download = installed = 0.0
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            files = sum(entry.file_size for entry in archive.infolist()) / 2**20
        size = wheel.stat().st_size / 2**20
        download, installed = download + size, installed + files
        sys.stdout.write(f"{wheel.name.split('-')[0]:12} {size:6.1f} MiB, files {files:6.1f} MiB\n")
    sys.stdout.write(f"base install: {download:.1f} MiB to download (at most {DOWNLOAD}), {installed:.1f} MiB of files (at most {INSTALLED})\n")
    return int(download > DOWNLOAD or installed > INSTALLED)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
