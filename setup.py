"""The packages of the distribution; all else is in pyproject.toml.

The folder ``models`` is installed as ``pyro_opu.models``. In a checkout the link of that name
stands for it; a system without links installs it all the same.
"""

from setuptools import find_packages, setup

setup(packages=sorted({*find_packages(include=["pyro_opu*"]), "pyro_opu.models"}))
