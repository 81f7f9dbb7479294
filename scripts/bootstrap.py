"""Sets up ``.venv`` for the Makefile; done in milliseconds when nothing changed.

    python3 scripts/bootstrap.py                 pinned packages from constraints.txt, roofgap editable
    python3 scripts/bootstrap.py --system-site   the packages this python already has, nothing downloaded

A stamp file holds what was installed: a changed pin installs again in place; another python, a moved folder
or an interrupted run starts over. Standard library only, in syntax that any Python since 3.7 parses.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "roofgap-stamp"
PINS = ("constraints.txt", "pyproject.toml", "setup.py", "scripts/bootstrap.py")
EXTRAS = "dev,e2e"

# With --system-site nothing is installed: what may be absent, and what that costs.
WANTED = {
    "torch": "kernels, packing and every measurement",
    "triton": "kernels, static analysis and every measurement",
    "numpy": "packing and tuning",
    "pydantic": "manifests, winners and every other record",
    "typer": "the roofgap command",
    "rich": "tables of the roofgap command",
    "pandas": "result tables",
    "scipy": "tuning statistics",
    "filelock": "writing winners",
    "platformdirs": "finding the user's winners",
    "pebble": "tuning in worker processes",
    "transformers": "extracting shapes from a model, decoding",
    "pynvml": "clocks, power and throttling (package nvidia-ml-py)",
    "asv": "comparing commits, the history site",
    "pytest": "make test, make gpu-test",
}


def fail(value: str, rule: str, remedy: str) -> None:
    """Ends with one line in the form that every roofgap error has."""
    sys.exit(f"roofgap: {value}: {rule}. {remedy}.")


def check_python(system_site: bool) -> None:
    """Refuses a python that cannot make the environment, and says what to do."""
    found = f"python {sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < (3, 10):  # noqa: UP036 - whoever has an older one is to be told
        fail(found, "roofgap needs Python 3.10 or newer", "Name another one: make PYTHON=python3.12")
    needed = ("venv",) if system_site else ("venv", "ensurepip")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        fail(
            found,
            f"its module {' and '.join(missing)} is missing",
            "On Debian or Ubuntu `apt-get install python3-venv`, or name another one: make PYTHON=...",
        )


def digest(*parts: str) -> str:
    """One short hash over texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def run(*command: str) -> None:
    """Runs a step of the installation; its failure ends the installation."""
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        fail(
            f"`{' '.join(command)}` (exit {status})",
            "setting up .venv failed, see above",
            "Mend the cause and run make again; an unfinished .venv is made anew",
        )


def install_pinned() -> None:
    """Every package at the version that constraints.txt names, then roofgap itself, editable."""
    pip = (str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--no-compile")
    run(*pip, "-c", "constraints.txt", "setuptools")
    run(*pip, "-c", "constraints.txt", "--no-build-isolation", "-e", f".[{EXTRAS}]")


def install_links() -> None:
    """Lets .venv see this python's packages and the rooms of this folder. Needs neither pip nor a network."""
    site = next((VENV / "lib").glob("python3*/site-packages"))
    hosts = [entry for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"}]
    (site / "host.pth").write_text("\n".join(hosts) + "\n")
    run(str(PYTHON), str(ROOT / "tracking" / "link.py"), str(ROOT), str(site))
    command = VENV / "bin" / "roofgap"
    command.write_text(f"#!{PYTHON}\nfrom roofgap.cli.main import main\n\nmain()\n")
    command.chmod(0o755)
    report_absent()


def report_absent() -> None:
    """Says what .venv lacks and what cannot run without it."""
    probe = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    done = subprocess.run(
        [str(PYTHON), "-c", probe, *WANTED], cwd=VENV, check=True, stdout=subprocess.PIPE, text=True
    )
    for name in done.stdout.split():
        print(f"roofgap: {name} is not installed; cannot run: {WANTED[name]}", file=sys.stderr)


def main() -> None:
    """Brings .venv up to date."""
    system_site = "--system-site" in sys.argv[1:]
    check_python(system_site)
    base = digest(str(ROOT), sys.version, sys.executable, str(system_site))
    pins = digest(*((ROOT / name).read_text() for name in PINS))
    stamp = STAMP.read_text().split() if STAMP.is_file() and PYTHON.exists() else []
    if stamp == [base, pins]:
        return
    if stamp[:1] == [base]:
        print("roofgap: pins changed, updating .venv", file=sys.stderr)
        STAMP.unlink()
    else:
        print(f"roofgap: setting up .venv with {sys.executable} (minutes, once)", file=sys.stderr)
        shutil.rmtree(VENV, ignore_errors=True)
        how = ("--system-site-packages", "--without-pip") if system_site else ()
        run(sys.executable, "-m", "venv", *how, str(VENV))
    if system_site:
        install_links()
    else:
        install_pinned()
    partial = STAMP.with_suffix(".partial")
    partial.write_text(f"{base}\n{pins}\n")
    partial.replace(STAMP)


if __name__ == "__main__":
    main()
