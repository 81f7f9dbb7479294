"""Maps the top-level rooms onto the import package ``roofgap``.

The folders keep the names the repository gives them (``kernels/``, ``tuning/`` and so on) while Python only
ever sees ``roofgap.kernels``, ``roofgap.tuning``: transformers would take a top-level import called
``kernels`` for the Hugging Face package of that name.
"""

from pathlib import Path

from setuptools import setup

ROOMS = ("shapes", "kernels", "tuning", "tracking", "e2e", "cli")


def packages() -> list[str]:
    """The rooms (``kernels/`` has no ``__init__.py``) and every folder below them that has one."""
    subfolders = sorted(init.parent for room in ROOMS for init in Path(room).glob("*/**/__init__.py"))
    return [f"roofgap.{room}" for room in ROOMS] + [f"roofgap.{'.'.join(path.parts)}" for path in subfolders]


setup(
    packages=packages(),
    package_dir={f"roofgap.{room}": room for room in ROOMS},
    package_data={"": ["**/*.json", "**/assets/**/*", "py.typed"]},
)
